"""What is done to a session as a whole, and what is read of it: Lua like that of gateway.lua, on the same keys.

A session of another tenant takes the same steps as one that is not there, and gets the same answer: NONE.
"""

from gateway.store.lua import NOW, TTL, UNINDEXED

CREATE = (
    TTL
    + r"""
-- ARGV: tenant, model, ttl ms
-- OK turn | NONE (the id is another tenant's)
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn')
if m[2] then return m[1] == ARGV[1] and {'OK', m[2]} or {'NONE'} end
redis.call('HSET', KEYS[1], 'turn', 0, 'st', 'DONE', 'n', 0, 'base', 0, 'fp', ARGV[2], 'ten', ARGV[1], 'ttl', ARGV[3],
  'own', '', 'lu', 0, 'fin', '', 'cx', '')
expire(tonumber(ARGV[3]))
return {'OK', '0'}
"""
)

DELETE = (
    UNINDEXED
    + r"""
-- ARGV: tenant
-- OK | NONE
if redis.call('HGET', KEYS[1], 'ten') ~= ARGV[1] then return {'NONE'} end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
unindexed()
return {'OK'}
"""
)

LOOK = (
    NOW
    + r"""
-- ARGV: tenant, request id
-- OK turn state n model ttl-ms-left turn-of-the-request-or-'' | EXPIRED | NONE
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'n', 'fp')
if m[1] ~= ARGV[1] then return {'NONE'} end
if redis.call('STRLEN', KEYS[2]) ~= m[4] * 4 then return {'EXPIRED'} end
local seen = redis.call('HGET', KEYS[4], ARGV[2]) or ''
local left = redis.call('PTTL', m[4] == '0' and KEYS[1] or KEYS[2])
return {'OK', m[2], m[3], m[4], m[5], tostring(left), seen:match('%d+') or ''}
"""
)

DUE = (
    NOW
    + r"""
-- KEYS: 1 the index of leases. ARGV: how many at most, lease ms
-- Sessions whose lease seems to be over, longest first; nobody else is told them for the time of a lease.
local found = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(found) do redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), name) end
return found
"""
)

LAPSED = (
    NOW
    + UNINDEXED
    + r"""
-- OK tenant turn ms-since-its-lease-ran-out | LIVE | NONE (over, paused, or gone)
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'lu')
if m[3] ~= 'GEN' or tonumber(m[4]) == 0 then
  unindexed()
  return {'NONE'}
end
local silent = now - tonumber(m[4])
if silent < 0 then return {'LIVE'} end
return {'OK', m[1], m[2], tostring(silent)}
"""
)

READ = (
    NOW
    + r"""
-- ARGV: tenant, turn, position in the stream after which to read, or '' for all of the turn
-- OK state ms-left-of-the-lease prompt-or-'' entries | EXPIRED | NONE
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'own', 'lu', 'n')
if m[1] ~= ARGV[1] or tonumber(ARGV[2]) > tonumber(m[2]) or tonumber(ARGV[2]) < 1 then return {'NONE'} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
local first = ARGV[3] == '' and ARGV[2] .. '-0' or '(' .. ARGV[2] .. '-' .. ARGV[3]
local entries = redis.call('XRANGE', KEYS[3], first, ARGV[2] .. '-18446744073709551615')
local prompt = ''
if ARGV[3] == '' then
  if #entries == 0 or entries[1][2][1] ~= 'p' then return {'EXPIRED'} end
  local length = entries[1][1]:match('-(%d+)') / 2
  prompt = length > 0 and redis.call('GETRANGE', KEYS[2], 0, length * 4 - 1) or ''
end
local left = m[4] ~= '' and math.max(0, tonumber(m[5]) - now) or 0
return {'OK', m[2] == ARGV[2] and m[3] or 'DONE', tostring(left), prompt, entries}
"""
)
