-- uses: clock
-- KEYS: block, ledger, mark of a full ledger. ARGV: value, ttl ms, budget in bytes, ms that the mark lasts
-- 1 when the block is kept | 0 when it would take what there is over the budget
local now = clock()
local entry, sum = #ARGV[1] .. ' ' .. KEYS[1], #ARGV[1]
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local size, key = other:match('(%d+) (.*)')
  if redis.call('EXISTS', key) == 0 then redis.call('ZREM', KEYS[2], other)  -- evicted
  elseif other ~= entry then sum = sum + size end
end
if sum > tonumber(ARGV[3]) then
  redis.call('SET', KEYS[3], '', 'PX', ARGV[4])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], written(now + ARGV[2] + 1000), entry)
redis.call('PEXPIRE', KEYS[2], ARGV[2] + 1000)
return 1
