-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: tenant, model, ttl ms
-- OK | NONE (the session is another tenant's)
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn')
if m[2] then return m[1] == ARGV[1] and {'OK'} or {'NONE'} end
redis.call('HSET', KEYS[1], 'turn', 0, 'st', 'DONE', 'n', 0, 'fp', ARGV[2], 'ten', ARGV[1], 'ttl', ARGV[3],
  'own', '', 'lu', 0, 'fin', '', 'cx', '')
expire(session_of(KEYS[1]), tonumber(ARGV[3]))
return {'OK'}
