"""The Lua scripts that write a block and its tenant's ledger in one atomic step.

The ledger is a sorted set with one entry "bytes key" for each block; its score is the time after which the block has
certainly expired. It is touched after every block of it, so that a server that evicts the least recently used keys
evicts it last.
"""

from gateway.store.lua import NOW

_LATER = "local function later(ms) return string.format('%.0f', now + ms + 1000) end\n"

PUT = (
    NOW
    + _LATER
    + r"""
-- KEYS: block, ledger, mark of a full ledger. ARGV: value, ttl ms, budget in bytes, ms that the mark lasts
-- 1 when the block is kept | 0 when it would take what there is over the budget
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
redis.call('ZADD', KEYS[2], later(ARGV[2]), entry)
redis.call('PEXPIRE', KEYS[2], ARGV[2] + 1000)
return 1
"""
)

TOUCH = (
    NOW
    + _LATER
    + r"""
-- KEYS: ledger, then blocks of one sequence, the last first: of a prefix that is cut short, the beginning is of use.
-- ARGV: ttl ms, then the bytes of each block
for i = 2, #KEYS do
  if redis.call('PEXPIRE', KEYS[i], ARGV[1]) == 1 then
    redis.call('ZADD', KEYS[1], later(ARGV[1]), ARGV[i] .. ' ' .. KEYS[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1] + 1000)
"""
)
