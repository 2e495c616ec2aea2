-- uses: clock
-- KEYS: ledger, then blocks of one sequence, the last first: of a prefix that is cut short, the beginning is of use.
-- ARGV: ttl ms, then the bytes of each block
local gone = written(clock() + ARGV[1] + 1000)
for i = 2, #KEYS do
  if redis.call('PEXPIRE', KEYS[i], ARGV[1]) == 1 then
    redis.call('ZADD', KEYS[1], gone, ARGV[i] .. ' ' .. KEYS[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1] + 1000)
