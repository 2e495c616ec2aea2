-- uses: clock
-- KEYS: the leases of all sessions. ARGV: how many at most, lease ms
-- OK, then the ids of sessions whose lease seems to be over, the oldest first. Each is given to one caller only for a
-- lease's time.
local now = clock()
local found = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(found) do redis.call('ZADD', KEYS[1], written(now + ARGV[2]), name) end
table.insert(found, 1, 'OK')
return found
