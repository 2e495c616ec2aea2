-- KEYS: the secret. ARGV: what it is to be where there is none, ms that it is kept at least
-- OK secret
local known = redis.call('GET', KEYS[1])
if known and redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then return {'OK', known} end
redis.call('SET', KEYS[1], known or ARGV[1], 'PX', 2 * tonumber(ARGV[2]))
return {'OK', known or ARGV[1]}
