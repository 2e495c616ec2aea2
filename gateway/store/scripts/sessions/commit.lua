-- uses: clock, sessions/shared, sessions/pass
-- Commit the rounds of one pass. ARGV: lease ms, then the packed rounds: epoch, base, and the tokens, finish and note,
-- each after its length.
-- Returns OK, and for each round: OK cancel | DUP cancel | FENCED | GAP n | MISMATCH n | CORRUPT n | SPOILED | NOSESSION
local now, lease_ms = clock(), tonumber(ARGV[1])
local due = now + 2 * lease_ms / 3  -- a lease that ends before it is renewed

-- What the log has already is not written again. A retry must write all the same: WAIT after a script without writes
-- can report an acknowledgement that never happened.
local function repeated(session, n, base, tokens, finish, cancelled)
  local m = redis.call('HMGET', session .. 'm', 'fin', 'ttl', 'st')
  local stop, same = base + #tokens / 4, nil
  if tokens == '' then same = m[1] == finish
  else same = redis.call('GETRANGE', session .. 't', base * 4, stop * 4 - 1) == tokens end
  if stop > n or not same then return 'MISMATCH ' .. n end
  if m[3] == 'GEN' then lease(session, now, lease_ms, m[2])
  else redis.call('HSET', session .. 'm', 'lu', written(now + lease_ms)) end
  return 'DUP ' .. cancelled
end

local function append(meta, epoch, base, tokens, finish, note)
  local m = redis.call('HMGET', meta, 'turn', 'st', 'n', 'cx', 'ep', 'lu')
  if not m[3] then return 'NOSESSION' end
  if tonumber(m[5]) ~= epoch then return 'FENCED' end
  local n, session = tonumber(m[3]), session_of(meta)
  if base < n or m[2] ~= 'GEN' then return repeated(session, n, base, tokens, finish, m[4]) end
  if base > n then return 'GAP ' .. m[3] end
  if redis.call('STRLEN', session .. 't') ~= n * 4 then return 'CORRUPT ' .. m[3] end
  -- XADD first: only it can be refused (memory, or an id that does not rise). An end without tokens has an odd id.
  n = n + #tokens / 4
  local id = m[1] .. '-' .. (2 * n + (tokens == '' and 1 or 0))
  redis.call('XADD', session .. 'o', id, 't', tokens, 'f', finish, 'r', note)
  redis.call('APPEND', session .. 't', tokens)
  if finish ~= '' then
    redis.call('HSET', meta, 'n', n, 'lu', written(now + lease_ms), 'st', 'DONE', 'fin', finish, 'own', '')
    redis.call('ZREM', leases, id_of(session))
    expire(session, tonumber(redis.call('HGET', meta, 'ttl')))
    return 'OK ' .. m[4]
  end
  redis.call('HSET', meta, 'n', n)
  if tonumber(m[6]) < due then lease(session, now, lease_ms, redis.call('HGET', meta, 'ttl')) end
  return 'OK ' .. m[4]
end

local answers, at = {}, 1
for i = 1, #KEYS - 1 do
  local epoch, base, tokens, finish, note, following = struct.unpack('<dI4I4c0I1c0I4c0', ARGV[2], at)
  answers[i], at = answer_of(append, KEYS[i], epoch, base, tokens, finish, note), following
end
return {'OK', table.concat(answers, ',')}
