-- For scripts on what one API key may ask for. KEYS, which share one hash tag:
-- 1. Buckets: a hash. r and t (levels of requests and tokens), r@ and t@ (when they were so, in ms of the server's clock).
-- 2. Leases: a sorted set from the id of a running request to the end of its lease, in ms.
local now = clock()
local function level(name, limit)
  local held = redis.call('HMGET', KEYS[1], name, name .. '@')
  if not held[1] then return limit end
  return math.min(limit, tonumber(held[1]) + (now - tonumber(held[2])) * limit / 60000)
end
local function keep(name, value, limit)
  redis.call('HSET', KEYS[1], name, string.format('%.6f', value), name .. '@', written(now))
  local full = math.ceil((limit - value) * 60000 / limit)
  redis.call('PEXPIRE', KEYS[1], math.max(full, redis.call('PTTL', KEYS[1]), 1))
end
