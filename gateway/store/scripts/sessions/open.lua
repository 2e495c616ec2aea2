-- uses: clock, sessions/shared
-- KEYS: of the session. ARGV: request id, expected turn or '', tokens, parameters, model, tenant, ttl ms, most bytes in
-- the log, digest, create ('1' or '0'), lease ms, the length of the log that the tokens continue or ''. A turn before it
-- that has no owner, or whose lease is over, ends as it is.
-- OK turn | DUP turn | REUSED | BUSY turn | CONFLICT turn | DENIED | MODEL model | TOOLONG n | EXPIRED
local now, lease_ms = clock(), tonumber(ARGV[11])
local m = redis.call('HMGET', KEYS[1], 'turn', 'st', 'fp', 'ten', 'ttl', 'n', 'lu', 'ep')
local turn, ttl = tonumber(m[1] or '0'), tonumber(m[5] or ARGV[7])
if m[4] ~= ARGV[6] and (m[1] or ARGV[10] ~= '1') then return {'DENIED'} end  -- first, since ids are not secret
local len = redis.call('STRLEN', KEYS[2])
if m[1] then
  local seen = redis.call('HGET', KEYS[4], ARGV[1])
  if seen then
    local opened, digest = seen:match('(%d+) (.*)')
    if digest ~= ARGV[9] then return {'REUSED'} end
    return {'DUP', opened}
  end
  if m[3] ~= ARGV[5] then return {'MODEL', m[3]} end
  if m[2] == 'GEN' and tonumber(m[7]) > now then return {'BUSY', m[1]} end
  if len ~= m[6] * 4 then return {'EXPIRED'} end
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= turn then return {'CONFLICT', tostring(turn)} end
local kept = ARGV[12] ~= '' and math.min(len, ARGV[12] * 4) or len
if kept + #ARGV[3] > tonumber(ARGV[8]) then return {'TOOLONG', tostring(kept / 4)} end
local n = (kept + #ARGV[3]) / 4
if m[2] == 'GEN' then
  redis.call('XADD', KEYS[3], turn .. '-' .. (len / 2 + 1), 't', '', 'f', 'stop', 'r', '')
  redis.call('HSET', KEYS[1], 'ep', written((m[8] or 0) + 1))
end
if kept < len then
  redis.call('SET', KEYS[2], redis.call('GETRANGE', KEYS[2], 0, kept - 1), 'KEEPTTL')
end
turn = turn + 1
redis.call('XADD', KEYS[3], turn .. '-' .. 2 * n, 'p', ARGV[4])
redis.call('APPEND', KEYS[2], ARGV[3])
redis.call('HSET', KEYS[1], 'turn', turn, 'st', 'GEN', 'n', n, 'fp', ARGV[5], 'ten', ARGV[6], 'ttl', ttl,
  'own', '', 'fin', '', 'cx', '')
redis.call('HSET', KEYS[4], ARGV[1], turn .. ' ' .. ARGV[9])
redis.call('XTRIM', KEYS[3], 'MINID', (turn - 1) .. '-0')
local session = session_of(KEYS[1])
lease(session, now, lease_ms, ttl)
-- In this step: a turn must never run without being found when its gateway dies.
redis.call('ZADD', KEYS[6], written(now + lease_ms), id_of(session))
return {'OK', tostring(turn)}
