local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function lease(ms)
  local over = string.format('%.0f', now + tonumber(ms))
  redis.call('HSET', KEYS[1], 'lu', over)
  return over
end
local function indexed(over) redis.call('ZADD', KEYS[6], over, KEYS[1]:match('{(.*)}')) end

-- ARGV: owner, lease ms, turn or ''
-- OK epoch n | HELD ms-left | OVER turn | EXPIRED | NOSESSION
local m = redis.call('HMGET', KEYS[1], 'own', 'lu', 'ep', 'st', 'turn', 'n')
if not m[4] then return {'NOSESSION'} end
if m[4] ~= 'GEN' or (ARGV[3] ~= '' and ARGV[3] ~= m[5]) then return {'OVER', m[5]} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
if m[1] ~= '' and m[1] ~= ARGV[1] and tonumber(m[2]) > now then
  return {'HELD', tostring(tonumber(m[2]) - now)}
end
-- At least the clock in microseconds, so that the epoch rises even after a failover that lost the last writes.
local epoch = string.format('%.0f', math.max(tonumber(m[3] or '0') + 1, t[1] * 1000000 + t[2]))
redis.call('HSET', KEYS[1], 'own', ARGV[1], 'ep', epoch)
indexed(lease(ARGV[2]))
return {'OK', epoch, m[6]}
