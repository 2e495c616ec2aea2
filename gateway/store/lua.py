"""The operations on one turn as Lua, each one atomic step on the keys of a session; replies begin with a word.

Scripts do not roll back: each checks everything first, and its first write is the only one the server may refuse.
KEYS: 1 meta hash, 2 token log (int32 little-endian), 3 output stream, 4 request id -> its turn, base and digest,
5 stream with an entry for each turn that its owner was asked to end; they share one hash tag. 6 is of all sessions:
session id -> when the lease of its running turn ends, unless that was given back. Meta fields: turn, st (GEN or DONE),
n and base (token counts), ep, own and lu (epoch, owner, and end of its lease in server ms), fp (model), ten (tenant),
ttl (ms), fin, cx (cancel asked for). Meta outlives the log, so that what expired is told from what never
was.

The stream holds the last two turns. Its ids are turn-position: 2n after the round that made the log n tokens long,
2n + 1 for an end without tokens, and first of each turn the opening, 2n of its prompt, with the parameters.
"""

LEASES = "sd:1:lease"
"""Behind the KEYS of a session."""


def keys(session_id: str) -> tuple[str, str, str, str, str]:
    """The KEYS of a session, in the order the scripts take them."""
    tag = f"sd:1:{{{session_id}}}"
    return f"{tag}:m", f"{tag}:t", f"{tag}:o", f"{tag}:r", f"{tag}:c"


NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
LEASE = r"""
local function lease(ms)
  local over = string.format('%.0f', now + tonumber(ms))
  redis.call('HSET', KEYS[1], 'lu', over)
  return over
end
local function indexed(over) redis.call('ZADD', KEYS[6], over, KEYS[1]:match('{(.*)}')) end
"""
UNINDEXED = "local function unindexed() redis.call('ZREM', KEYS[6], KEYS[1]:match('{(.*)}')) end\n"
TTL = r"""
-- While a turn runs, with a lease, nothing of it goes before its owner has had the time to be replaced.
local function expire(ttl, lease_ms)
  local ms = math.max(ttl, 2 * (lease_ms or 0))
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], (i == 1 or i == 4) and 2 * ms or ms) end
end
"""

OPEN = (
    NOW
    + LEASE
    + TTL
    + r"""
-- ARGV: request id, expected turn or '', tokens, parameters, model, tenant, ttl ms, most bytes in the log, digest,
-- create ('1' or '0'), lease ms. A paused turn, which nobody has or had in time, ends where it stands.
-- OK turn n | DUP turn base state | REUSED | BUSY turn | CONFLICT turn | DENIED | MODEL model | TOOLONG n | EXPIRED
local m = redis.call('HMGET', KEYS[1], 'turn', 'st', 'fp', 'ten', 'ttl', 'n', 'lu', 'ep')
local turn, ttl = tonumber(m[1] or '0'), tonumber(m[5] or ARGV[7])
if m[4] ~= ARGV[6] and (m[1] or ARGV[10] ~= '1') then return {'DENIED'} end  -- before all else: ids are no secrets
local len = redis.call('STRLEN', KEYS[2])
if m[1] then
  local seen = redis.call('HGET', KEYS[4], ARGV[1])
  if seen then
    local of, base, digest = seen:match('(%d+) (%d+) (.*)')
    if digest ~= ARGV[9] then return {'REUSED'} end
    return {'DUP', of, base, of == m[1] and m[2] or 'DONE'}
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
redis.call('HSET', KEYS[1], 'turn', turn, 'st', 'GEN', 'n', n, 'base', n, 'fp', ARGV[5], 'ten', ARGV[6], 'ttl', ttl,
  'own', '', 'fin', '', 'cx', '')
indexed(lease(ARGV[11]))  -- here, so that no moment is left in which a turn runs and cannot be found
redis.call('HSET', KEYS[4], ARGV[1], turn .. ' ' .. n .. ' ' .. ARGV[9])
redis.call('XTRIM', KEYS[3], 'MINID', (turn - 1) .. '-0')
expire(ttl, ARGV[11])
return {'OK', tostring(turn), tostring(n)}
"""
)

ACQUIRE = (
    NOW
    + LEASE
    + r"""
-- ARGV: owner, lease ms, turn or ''
-- OK epoch n | HELD owner ms-left | OVER turn | EXPIRED | NOSESSION
local m = redis.call('HMGET', KEYS[1], 'own', 'lu', 'ep', 'st', 'turn', 'n')
if not m[4] then return {'NOSESSION'} end
if m[4] ~= 'GEN' or (ARGV[3] ~= '' and ARGV[3] ~= m[5]) then return {'OVER', m[5]} end
if redis.call('STRLEN', KEYS[2]) ~= m[6] * 4 then return {'EXPIRED'} end
if m[1] ~= '' and m[1] ~= ARGV[1] and tonumber(m[2]) > now then
  return {'HELD', m[1], tostring(tonumber(m[2]) - now)}
end
-- Never below the clock: the epoch keeps rising even after a failover that lost the last writes.
local epoch = string.format('%.0f', math.max(tonumber(m[3] or '0') + 1, t[1] * 1000000 + t[2]))
redis.call('HSET', KEYS[1], 'own', ARGV[1], 'ep', epoch)
indexed(lease(ARGV[2]))
return {'OK', epoch, m[6]}
"""
)

COMMIT = (
    NOW
    + LEASE
    + UNINDEXED
    + TTL
    + r"""
-- ARGV: epoch, base, tokens, finish or '', lease ms, note
-- OK n cancel | DUP n cancel | FENCED epoch | GAP n | MISMATCH n state | CORRUPT n | NOSESSION
local m = redis.call('HMGET', KEYS[1], 'ep', 'n', 'turn', 'st', 'fin', 'cx', 'ttl')
if not m[2] then return {'NOSESSION'} end
if m[1] ~= ARGV[1] then return {'FENCED', m[1] or ''} end
local n, base, count = tonumber(m[2]), tonumber(ARGV[2]), #ARGV[3] / 4
if base < n or m[4] ~= 'GEN' then
  local same
  if count == 0 then same = m[5] == ARGV[4]
  else same = redis.call('GETRANGE', KEYS[2], base * 4, (base + count) * 4 - 1) == ARGV[3] end
  if base + count > n or not same then return {'MISMATCH', m[2], m[4]} end
  -- A retry must write too: WAIT after a read-only script can report an acknowledgement that never happened.
  lease(ARGV[5])
  return {'DUP', m[2], m[6]}
end
if base > n then return {'GAP', m[2]} end
if redis.call('STRLEN', KEYS[2]) ~= n * 4 then return {'CORRUPT', m[2]} end
-- XADD first: it alone can be refused (memory, or an id that does not rise). An end without tokens has an odd id.
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
return {'OK', tostring(n), m[6]}
"""
)

RENEW = (
    NOW
    + LEASE
    + TTL
    + r"""
-- ARGV: epoch, lease ms
-- OK cancel | FENCED
local m = redis.call('HMGET', KEYS[1], 'ep', 'cx', 'ttl')
if m[1] ~= ARGV[1] then return {'FENCED'} end
indexed(lease(ARGV[2]))
expire(m[3], ARGV[2])
return {'OK', m[2]}
"""
)

CANCEL = (
    NOW
    + UNINDEXED
    + r"""
-- ARGV: tenant, turn. Without an epoch on purpose: any replica may ask. The owner waits for an entry in the stream of
-- such wishes; should it miss that, it sees the flag with its next commit or renewal.
-- A turn that nobody owns ends here, and whoever owned it last is fenced.
-- OK | NOOP | DENIED
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'own', 'lu', 'n', 'ep', 'cx', 'ttl')
if m[1] ~= ARGV[1] then return {'DENIED'} end
if m[2] ~= ARGV[2] or m[3] ~= 'GEN' then return {'NOOP'} end
if m[4] ~= '' and tonumber(m[5]) > now then
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
