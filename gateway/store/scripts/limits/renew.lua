-- uses: clock, limits/shared
-- ARGV: lease ms, every id.
for i = 2, #ARGV - 1 do redis.call('ZADD', KEYS[2], 'XX', written(now + tonumber(ARGV[1])), ARGV[i]) end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {'OK'}
