-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: epoch
-- OK | FENCED
if redis.call('HGET', KEYS[1], 'ep') ~= ARGV[1] then return {'FENCED'} end
redis.call('HSET', KEYS[1], 'own', '', 'lu', '0')
redis.call('ZREM', KEYS[6], id_of(KEYS[1]))
return {'OK'}
