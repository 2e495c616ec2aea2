-- uses: clock, limits/shared
-- ARGV: id, lease ms, tokens, limits of requests, tokens and concurrency; 0 for none.
-- OK wait-ms requests-left tokens-left | REQUESTS, TOKENS or CONCURRENCY (used up), with the same
local id, lease, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most, most_tokens, at_once = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local r, t = most > 0 and level('r', most) or 0, most_tokens > 0 and level('t', most_tokens) or 0
local function reply(word, wait)
  return {word, written(wait), string.format('%.6f', r), string.format('%.6f', t)}
end
if redis.call('ZSCORE', KEYS[2], id) then return reply('OK', 0) end
if at_once > 0 and redis.call('ZCARD', KEYS[2]) >= at_once then return reply('CONCURRENCY', 0) end
if most > 0 and r < 1 then return reply('REQUESTS', (1 - r) * 60000 / most) end
if most_tokens > 0 and t < math.max(tokens, 1) then
  return reply('TOKENS', (math.max(tokens, 1) - t) * 60000 / most_tokens)
end
if most > 0 then r = r - 1; keep('r', r, most) end
if most_tokens > 0 then t = t - tokens; keep('t', t, most_tokens) end
redis.call('ZADD', KEYS[2], written(now + lease), id)
redis.call('PEXPIRE', KEYS[2], lease)
return reply('OK', 0)
