"""Lua scripts on one turn of a session: open, own, extend, cancel and read it. gateway.store.lua explains the keys."""

from gateway.store.lua import EXPIRY, LEASE, NOW, PASS, UNINDEXED

OPEN = (
    NOW
    + LEASE
    + EXPIRY
    + r"""
-- ARGV: request id, expected turn or '', tokens, parameters, model, tenant, ttl ms, most bytes in the log, digest,
-- create ('1' or '0'), lease ms. A turn before it that has no owner, or whose lease is over, ends as it is.
-- OK turn | DUP turn | REUSED | BUSY turn | CONFLICT turn | DENIED | MODEL model | TOOLONG n | EXPIRED
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
if len + #ARGV[3] > tonumber(ARGV[8]) then return {'TOOLONG', tostring(len / 4)} end
local n = (len + #ARGV[3]) / 4
if m[2] == 'GEN' then
  redis.call('XADD', KEYS[3], turn .. '-' .. (len / 2 + 1), 't', '', 'f', 'stop', 'r', '')
  redis.call('HSET', KEYS[1], 'ep', string.format('%.0f', (m[8] or 0) + 1))
end
turn = turn + 1
redis.call('XADD', KEYS[3], turn .. '-' .. 2 * n, 'p', ARGV[4])
redis.call('APPEND', KEYS[2], ARGV[3])
redis.call('HSET', KEYS[1], 'turn', turn, 'st', 'GEN', 'n', n, 'fp', ARGV[5], 'ten', ARGV[6], 'ttl', ttl,
  'own', '', 'fin', '', 'cx', '')
indexed(lease(ARGV[11]))  -- in this step: a turn must never run without being found when its gateway dies
redis.call('HSET', KEYS[4], ARGV[1], turn .. ' ' .. ARGV[9])
redis.call('XTRIM', KEYS[3], 'MINID', (turn - 1) .. '-0')
keep(KEYS[1]:sub(1, -2), ttl, ARGV[11])
return {'OK', tostring(turn)}
"""
)

ACQUIRE = (
    NOW
    + LEASE
    + EXPIRY
    + r"""
-- ARGV: owner, lease ms, turn or ''
-- OK epoch n | HELD ms-left | OVER turn | EXPIRED | NOSESSION
local m = redis.call('HMGET', KEYS[1], 'own', 'lu', 'ep', 'st', 'turn', 'n', 'ttl')
if not m[4] then return {'NOSESSION'} end
if m[4] ~= 'GEN' or (ARGV[3] ~= '' and ARGV[3] ~= m[5]) then return {'OVER', m[5]} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
if m[1] ~= '' and m[1] ~= ARGV[1] and tonumber(m[2]) > now then
  return {'HELD', tostring(tonumber(m[2]) - now)}
end
-- At least the clock in microseconds, so that the epoch rises even after a failover that lost the last writes.
local epoch = string.format('%.0f', math.max(tonumber(m[3] or '0') + 1, t[1] * 1000000 + t[2]))
redis.call('HSET', KEYS[1], 'own', ARGV[1], 'ep', epoch)
indexed(lease(ARGV[2]))
keep(KEYS[1]:sub(1, -2), m[7], ARGV[2])
return {'OK', epoch, m[6]}
"""
)

COMMIT = (
    NOW
    + PASS
    + EXPIRY
    + r"""
-- The rounds of one pass. KEYS: the meta of each round's session, then the leases of all. ARGV: lease ms, rounds, each
-- packed: epoch, base, and tokens, finish and note behind their lengths.
-- OK, and for each round: OK cancel | DUP cancel | FENCED | GAP n | MISMATCH n | CORRUPT n | NOSESSION
local lease_ms = tonumber(ARGV[1])
local over = string.format('%.0f', now + lease_ms)
local function append(meta, epoch, base, tokens, finish, note)
  local m = redis.call('HMGET', meta, 'ep', 'n', 'turn', 'st', 'fin', 'cx', 'ttl', 'xp')
  if not m[2] then return 'NOSESSION' end
  if tonumber(m[1]) ~= epoch then return 'FENCED' end
  local n, count, session = tonumber(m[2]), #tokens / 4, meta:sub(1, -2)
  if base < n or m[4] ~= 'GEN' then
    local same
    if count == 0 then same = m[5] == finish
    else same = redis.call('GETRANGE', session .. 't', base * 4, (base + count) * 4 - 1) == tokens end
    if base + count > n or not same then return 'MISMATCH ' .. m[2] end
    -- A retry must write too: WAIT after a script without writes can report an acknowledgement that never happened.
    redis.call('HSET', meta, 'lu', over)
    return 'DUP ' .. m[6]
  end
  if base > n then return 'GAP ' .. m[2] end
  if redis.call('STRLEN', session .. 't') ~= n * 4 then return 'CORRUPT ' .. m[2] end
  -- XADD first: only it can be refused (memory, or an id that does not rise). An end without tokens has an odd id.
  n = n + count
  local id = m[3] .. '-' .. (2 * n + (count == 0 and 1 or 0))
  redis.call('XADD', session .. 'o', id, 't', tokens, 'f', finish, 'r', note)
  redis.call('APPEND', session .. 't', tokens)
  if finish ~= '' then
    redis.call('HSET', meta, 'n', n, 'lu', over, 'st', 'DONE', 'fin', finish, 'own', '')
    redis.call('ZREM', KEYS[#KEYS], meta:match('{(.*)}'))
    expire(session, tonumber(m[7]))
    return 'OK ' .. m[6]
  end
  redis.call('HSET', meta, 'n', n, 'lu', over)
  if is_due(m[8], lease_ms) then keep(session, m[7], lease_ms) end
  return 'OK ' .. m[6]
end
local answers, at = {}, 1
for i = 1, #KEYS - 1 do
  local epoch, base, tokens, finish, note, following = struct.unpack('<dI4I4c0I1c0I4c0', ARGV[2], at)
  answers[i], at = answer_of(append, KEYS[i], epoch, base, tokens, finish, note), following
end
return {'OK', table.concat(answers, ',')}
"""
)

RENEW = (
    NOW
    + PASS
    + EXPIRY
    + r"""
-- KEYS: the meta of each session, then the leases of all. ARGV: lease ms, the epochs, packed
-- OK, and for each session: OK cancel | FENCED
local lease_ms = tonumber(ARGV[1])
local over = string.format('%.0f', now + lease_ms)
local function renew(meta, epoch)
  local m = redis.call('HMGET', meta, 'ep', 'cx', 'ttl', 'xp')
  if tonumber(m[1]) ~= epoch then return 'FENCED' end
  redis.call('HSET', meta, 'lu', over)
  redis.call('ZADD', KEYS[#KEYS], over, meta:match('{(.*)}'))
  if is_due(m[4], lease_ms) then keep(meta:sub(1, -2), m[3], lease_ms) end
  return 'OK ' .. m[2]
end
local answers = {}
for i = 1, #KEYS - 1 do answers[i] = answer_of(renew, KEYS[i], struct.unpack('<d', ARGV[2], 8 * i - 7)) end
return {'OK', table.concat(answers, ',')}
"""
)

CANCEL = (
    NOW
    + UNINDEXED
    + r"""
-- ARGV: tenant, turn, what the keys of the cancellations of owners begin with, ms that an entry is kept at least. There
-- is no epoch on purpose: every gateway may cancel. The owner waits for an entry in its stream of cancellations; if it
-- misses that, it sees the flag with its next commit or renewal.
-- A turn without an owner ends here, and its last owner is fenced.
-- OK | NOOP | DENIED
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'own', 'lu', 'n', 'ep', 'cx', 'ttl')
if m[1] ~= ARGV[1] then return {'DENIED'} end
if m[2] ~= ARGV[2] or m[3] ~= 'GEN' then return {'NOOP'} end
if m[4] ~= '' and tonumber(m[5]) > now then
  local session, owners = KEYS[1]:match('{(.*)}'), ARGV[3] .. m[4]
  redis.call('XADD', owners, 'MAXLEN', '~', 4096, '*', 's', session, 'n', m[2])
  redis.call('PEXPIRE', owners, ARGV[4])
  if m[8] ~= '1' then redis.call('XADD', KEYS[5], m[2] .. '-1', 'x', '1') end
  redis.call('PEXPIRE', KEYS[5], m[9])
  redis.call('HSET', KEYS[1], 'cx', '1')
  return {'OK'}
end
redis.call('XADD', KEYS[3], m[2] .. '-' .. (2 * m[6] + 1), 't', '', 'f', 'stop', 'r', '')
redis.call('HSET', KEYS[1], 'st', 'DONE', 'fin', 'stop', 'own', '', 'ep', string.format('%.0f', (m[7] or 0) + 1))
unindexed()
return {'OK'}
"""
)

RELEASE = (
    UNINDEXED
    + r"""
-- ARGV: epoch
-- OK | FENCED
if redis.call('HGET', KEYS[1], 'ep') ~= ARGV[1] then return {'FENCED'} end
redis.call('HSET', KEYS[1], 'own', '', 'lu', '0')
unindexed()
return {'OK'}
"""
)

READ = (
    NOW
    + r"""
-- ARGV: tenant, turn, position in the stream after which to read, or '' for all of the turn
-- OK state ms-left-of-the-lease prompt-or-'' entries | EXPIRED | NONE
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'own', 'lu', 'n')
if m[1] ~= ARGV[1] or tonumber(ARGV[2]) > tonumber(m[2]) or tonumber(ARGV[2]) < 1 then return {'NONE'} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
local first = ARGV[3] == '' and ARGV[2] .. '-0' or '(' .. ARGV[2] .. '-' .. ARGV[3]
local entries = redis.call('XRANGE', KEYS[3], first, ARGV[2] .. '-18446744073709551615')
local prompt = ''
if ARGV[3] == '' then
  if #entries == 0 or entries[1][2][1] ~= 'p' then return {'EXPIRED'} end
  local length = entries[1][1]:match('-(%d+)') / 2
  prompt = length > 0 and redis.call('GETRANGE', KEYS[2], 0, length * 4 - 1) or ''
end
local left = m[4] ~= '' and math.max(0, tonumber(m[5]) - now) or 0
return {'OK', m[2] == ARGV[2] and m[3] or 'DONE', tostring(left), prompt, entries}
"""
)
