-- Functions on one session, which stands for its keys without their last letter; gateway.store.lua explains them.
local function session_of(meta) return meta:sub(1, -2) end
local function id_of(session) return session:match('{(.*)}') end
local function expire(session, ms)
  for _, key in ipairs({'t', 'o'}) do redis.call('PEXPIRE', session .. key, ms) end
  for _, key in ipairs({'m', 'r'}) do redis.call('PEXPIRE', session .. key, 2 * ms) end
end
-- Moves the end of the lease. While a turn runs, its keys outlive two leases, so that another owner can take it over;
-- they are kept for one more, since a commit does not renew a lease that has just been renewed.
local function lease(session, now, ms, ttl)
  redis.call('HSET', session .. 'm', 'lu', written(now + ms))
  expire(session, math.max(tonumber(ttl), 2 * ms) + ms)
end
