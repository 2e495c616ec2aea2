-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: owner, lease ms, turn or ''
-- OK epoch n | HELD ms-left | OVER turn | EXPIRED | NOSESSION
local now, seconds, us = clock()
local lease_ms = tonumber(ARGV[2])
local m = redis.call('HMGET', KEYS[1], 'own', 'lu', 'ep', 'st', 'turn', 'n', 'ttl')
if not m[4] then return {'NOSESSION'} end
if m[4] ~= 'GEN' or (ARGV[3] ~= '' and ARGV[3] ~= m[5]) then return {'OVER', m[5]} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
if m[1] ~= '' and m[1] ~= ARGV[1] and tonumber(m[2]) > now then
  return {'HELD', tostring(tonumber(m[2]) - now)}
end
-- At least the clock in microseconds, so that the epoch rises even after a failover that lost the last writes.
local epoch = written(math.max(tonumber(m[3] or '0') + 1, seconds * 1000000 + us))
redis.call('HSET', KEYS[1], 'own', ARGV[1], 'ep', epoch)
local session = session_of(KEYS[1])
lease(session, now, lease_ms, m[7])
redis.call('ZADD', KEYS[6], written(now + lease_ms), id_of(session))
return {'OK', epoch, m[6]}
