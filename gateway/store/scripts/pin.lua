-- KEYS: pin. ARGV: epoch, ttl ms, choice, every candidate. Returns the verifier that is to serve.
local held = redis.call('HMGET', KEYS[1], 'v', 'ep')
if held[1] and tonumber(held[2]) > tonumber(ARGV[1]) then return held[1] end  -- a newer owner has pinned it
local choice = ARGV[3]
for i = 4, #ARGV do if ARGV[i] == held[1] then choice = held[1] end end
redis.call('HSET', KEYS[1], 'v', choice, 'ep', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return choice
