-- uses: clock, limits/shared
-- ARGV: id, requests and tokens to give back (less than 0 to take more), limits of both; 0 for none.
-- OK | GONE (it was given back before, or its lease is over)
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return {'GONE'} end
local function give(name, back, limit)
  if limit > 0 and back ~= 0 then keep(name, math.min(limit, level(name, limit) + back), limit) end
end
give('r', tonumber(ARGV[2]), tonumber(ARGV[4]))
give('t', tonumber(ARGV[3]), tonumber(ARGV[5]))
return {'OK'}
