-- uses: clock, sessions/shared, sessions/pass
-- ARGV: lease ms, the epoch of each session, packed
-- OK, and for each session: OK cancel | FENCED | SPOILED
local now, lease_ms = clock(), tonumber(ARGV[1])
local function renew(meta, epoch)
  local m = redis.call('HMGET', meta, 'ep', 'cx', 'ttl')
  if tonumber(m[1]) ~= epoch then return 'FENCED' end
  local session = session_of(meta)
  lease(session, now, lease_ms, m[3])
  redis.call('ZADD', leases, written(now + lease_ms), id_of(session))
  return 'OK ' .. m[2]
end
local answers = {}
for i = 1, #KEYS - 1 do answers[i] = answer_of(renew, KEYS[i], struct.unpack('<d', ARGV[2], 8 * i - 7)) end
return {'OK', table.concat(answers, ',')}
