"""Lua scripts on what one API key may ask for. gateway.store.checked_scripts puts checksums around each.

KEYS, which share one hash tag:

1. Buckets: a hash. r and t (levels of requests and tokens), r@ and t@ (when they were so, in ms of the server's clock).
2. Leases: a sorted set from the id of a running request to the end of its lease, in ms.
"""

from gateway.store.lua import NOW

_FUNCTIONS = (
    NOW
    + r"""
local function level(name, limit)
  local held = redis.call('HMGET', KEYS[1], name, name .. '@')
  if not held[1] then return limit end
  return math.min(limit, tonumber(held[1]) + (now - tonumber(held[2])) * limit / 60000)
end
local function keep(name, value, limit)
  redis.call('HSET', KEYS[1], name, string.format('%.6f', value), name .. '@', string.format('%.0f', now))
  local full = math.ceil((limit - value) * 60000 / limit)
  redis.call('PEXPIRE', KEYS[1], math.max(full, redis.call('PTTL', KEYS[1]), 1))
end
"""
)
ENTER = (
    _FUNCTIONS
    + r"""
-- ARGV: id, lease ms, tokens, limits of requests, tokens and concurrency; 0 for none.
-- OK wait-ms requests-left tokens-left | REQUESTS, TOKENS or CONCURRENCY (used up), with the same
local id, lease, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most, most_tokens, at_once = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local r, t = most > 0 and level('r', most) or 0, most_tokens > 0 and level('t', most_tokens) or 0
local function reply(word, wait)
  return {word, string.format('%.0f', wait), string.format('%.6f', r), string.format('%.6f', t)}
end
if redis.call('ZSCORE', KEYS[2], id) then return reply('OK', 0) end
if at_once > 0 and redis.call('ZCARD', KEYS[2]) >= at_once then return reply('CONCURRENCY', 0) end
if most > 0 and r < 1 then return reply('REQUESTS', (1 - r) * 60000 / most) end
if most_tokens > 0 and t < math.max(tokens, 1) then
  return reply('TOKENS', (math.max(tokens, 1) - t) * 60000 / most_tokens)
end
if most > 0 then r = r - 1; keep('r', r, most) end
if most_tokens > 0 then t = t - tokens; keep('t', t, most_tokens) end
redis.call('ZADD', KEYS[2], string.format('%.0f', now + lease), id)
redis.call('PEXPIRE', KEYS[2], lease)
return reply('OK', 0)
"""
)
LEAVE = (
    _FUNCTIONS
    + r"""
-- ARGV: id, requests and tokens to give back (less than 0 to take more), limits of both; 0 for none.
-- OK | GONE (it was given back before, or its lease is over)
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return {'GONE'} end
local function give(name, back, limit)
  if limit > 0 and back ~= 0 then keep(name, math.min(limit, level(name, limit) + back), limit) end
end
give('r', tonumber(ARGV[2]), tonumber(ARGV[4]))
give('t', tonumber(ARGV[3]), tonumber(ARGV[5]))
return {'OK'}
"""
)
RENEW = (
    NOW
    + r"""
-- KEYS: as above. ARGV: lease ms, every id.
for i = 2, #ARGV - 1 do redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', now + tonumber(ARGV[1])), ARGV[i]) end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {'OK'}
"""
)
