-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: tenant, turn, what the keys of the cancellations of owners begin with, ms that an entry is
-- kept at least. There is no epoch on purpose: every gateway may cancel. The owner waits for an entry in its stream of
-- cancellations; if it misses that, it sees the flag with its next commit or renewal. A turn without an owner ends
-- here, and its last owner is fenced.
-- OK | NOOP | DENIED
local now, session = clock(), session_of(KEYS[1])
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'own', 'lu', 'n', 'ep', 'cx', 'ttl')
if m[1] ~= ARGV[1] then return {'DENIED'} end
if m[2] ~= ARGV[2] or m[3] ~= 'GEN' then return {'NOOP'} end
if m[4] ~= '' and tonumber(m[5]) > now then
  local owners = ARGV[3] .. m[4]
  redis.call('XADD', owners, 'MAXLEN', '~', 4096, '*', 's', id_of(session), 'n', m[2])
  redis.call('PEXPIRE', owners, ARGV[4])
  if m[8] ~= '1' then redis.call('XADD', KEYS[5], m[2] .. '-1', 'x', '1') end
  redis.call('PEXPIRE', KEYS[5], m[9])
  redis.call('HSET', KEYS[1], 'cx', '1')
  return {'OK'}
end
redis.call('XADD', KEYS[3], m[2] .. '-' .. (2 * m[6] + 1), 't', '', 'f', 'stop', 'r', '')
redis.call('HSET', KEYS[1], 'st', 'DONE', 'fin', 'stop', 'own', '', 'ep', written((m[7] or 0) + 1))
redis.call('ZREM', KEYS[6], id_of(session))
return {'OK'}
