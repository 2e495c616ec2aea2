-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: tenant
-- OK | NONE
if redis.call('HGET', KEYS[1], 'ten') ~= ARGV[1] then return {'NONE'} end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('ZREM', KEYS[6], id_of(KEYS[1]))
return {'OK'}
