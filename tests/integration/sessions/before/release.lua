local function unindexed() redis.call('ZREM', KEYS[6], KEYS[1]:match('{(.*)}')) end

-- ARGV: epoch
-- OK | FENCED
if redis.call('HGET', KEYS[1], 'ep') ~= ARGV[1] then return {'FENCED'} end
redis.call('HSET', KEYS[1], 'own', '', 'lu', '0')
unindexed()
return {'OK'}
