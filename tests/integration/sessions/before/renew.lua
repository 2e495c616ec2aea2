local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function lease(ms)
  local over = string.format('%.0f', now + tonumber(ms))
  redis.call('HSET', KEYS[1], 'lu', over)
  return over
end
local function indexed(over) redis.call('ZADD', KEYS[6], over, KEYS[1]:match('{(.*)}')) end

-- While a turn runs, its keys outlive two leases, so that another owner can take it over.
local function expire(ttl, lease_ms)
  local ms = math.max(ttl, 2 * (lease_ms or 0))
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], (i == 1 or i == 4) and 2 * ms or ms) end
end

-- ARGV: epoch, lease ms
-- OK cancel | FENCED
local m = redis.call('HMGET', KEYS[1], 'ep', 'cx', 'ttl')
if m[1] ~= ARGV[1] then return {'FENCED'} end
indexed(lease(ARGV[2]))
expire(m[3], ARGV[2])
return {'OK', m[2]}
