local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function lease(ms)
  local over = string.format('%.0f', now + tonumber(ms))
  redis.call('HSET', KEYS[1], 'lu', over)
  return over
end
local function indexed(over) redis.call('ZADD', KEYS[6], over, KEYS[1]:match('{(.*)}')) end
local function unindexed() redis.call('ZREM', KEYS[6], KEYS[1]:match('{(.*)}')) end

-- While a turn runs, its keys outlive two leases, so that another owner can take it over.
local function expire(ttl, lease_ms)
  local ms = math.max(ttl, 2 * (lease_ms or 0))
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], (i == 1 or i == 4) and 2 * ms or ms) end
end

-- ARGV: epoch, base, tokens, finish or '', lease ms, note
-- OK cancel | DUP cancel | FENCED | GAP n | MISMATCH n | CORRUPT n | NOSESSION
local m = redis.call('HMGET', KEYS[1], 'ep', 'n', 'turn', 'st', 'fin', 'cx', 'ttl')
if not m[2] then return {'NOSESSION'} end
if m[1] ~= ARGV[1] then return {'FENCED'} end
local n, base, count = tonumber(m[2]), tonumber(ARGV[2]), #ARGV[3] / 4
if base < n or m[4] ~= 'GEN' then
  local same
  if count == 0 then same = m[5] == ARGV[4]
  else same = redis.call('GETRANGE', KEYS[2], base * 4, (base + count) * 4 - 1) == ARGV[3] end
  if base + count > n or not same then return {'MISMATCH', m[2]} end
  -- A retry must write too: WAIT after a script without writes can report an acknowledgement that never happened.
  lease(ARGV[5])
  return {'DUP', m[6]}
end
if base > n then return {'GAP', m[2]} end
if redis.call('STRLEN', KEYS[2]) ~= n * 4 then return {'CORRUPT', m[2]} end
-- XADD first: only it can be refused (memory, or an id that does not rise). An end without tokens has an odd id.
local id = m[3] .. '-' .. (2 * (n + count) + (count == 0 and 1 or 0))
redis.call('XADD', KEYS[3], id, 't', ARGV[3], 'f', ARGV[4], 'r', ARGV[6])
redis.call('APPEND', KEYS[2], ARGV[3])
n = n + count
redis.call('HSET', KEYS[1], 'n', n)
lease(ARGV[5])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'st', 'DONE', 'fin', ARGV[4], 'own', '')
  unindexed()
end
expire(m[7], ARGV[4] == '' and ARGV[5] or 0)
return {'OK', m[6]}
