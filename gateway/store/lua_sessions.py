"""Lua scripts on a session as a whole, and on the leases of all sessions. gateway.store.lua explains the keys.

The session of another tenant takes the same steps as one that does not exist, and has the same answer, NONE.
"""

from gateway.store.lua import EXPIRY, NOW, UNINDEXED

CREATE = (
    EXPIRY
    + r"""
-- ARGV: tenant, model, ttl ms
-- OK | NONE (the session is another tenant's)
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn')
if m[2] then return m[1] == ARGV[1] and {'OK'} or {'NONE'} end
redis.call('HSET', KEYS[1], 'turn', 0, 'st', 'DONE', 'n', 0, 'fp', ARGV[2], 'ten', ARGV[1], 'ttl', ARGV[3],
  'own', '', 'lu', 0, 'fin', '', 'cx', '')
expire(KEYS[1]:sub(1, -2), tonumber(ARGV[3]))
return {'OK'}
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

GET = r"""
-- ARGV: tenant, request id
-- OK turn state n model ttl-ms-left turn-of-the-request-or-'' | EXPIRED | NONE
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'n', 'fp')
if m[1] ~= ARGV[1] then return {'NONE'} end
if redis.call('STRLEN', KEYS[2]) ~= m[4] * 4 then return {'EXPIRED'} end
local seen = redis.call('HGET', KEYS[4], ARGV[2]) or ''
local left = redis.call('PTTL', m[4] == '0' and KEYS[1] or KEYS[2])
return {'OK', m[2], m[3], m[4], m[5], tostring(left), seen:match('%d+') or ''}
"""

SECRET = r"""
-- KEYS: 1 the secret. ARGV: what it is to be where there is none, ms that it is kept at least
-- OK secret
local known = redis.call('GET', KEYS[1])
if known and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then return {'OK', known} end
redis.call('SET', KEYS[1], known or ARGV[1], 'PX', 2 * tonumber(ARGV[2]))
return {'OK', known or ARGV[1]}
"""

LAPSED = (
    NOW
    + r"""
-- KEYS: 1 the leases of all sessions. ARGV: how many at most, lease ms
-- OK, then the ids of sessions whose lease seems to be over, the oldest first. Each is given to one caller only for a
-- lease's time.
local found = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(found) do redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), name) end
table.insert(found, 1, 'OK')
return found
"""
)

LAPSED_TURN = (
    NOW
    + UNINDEXED
    + r"""
-- OK tenant turn ms-since-the-end-of-its-lease | LIVE | NONE (the turn is done or released, or the session is gone)
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
