local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function unindexed() redis.call('ZREM', KEYS[6], KEYS[1]:match('{(.*)}')) end

-- ARGV: tenant, turn. There is no epoch on purpose: every gateway may cancel. The owner waits for an entry in the
-- stream of cancellations; if it misses that, it sees the flag with its next commit or renewal.
-- A turn without an owner ends here, and its last owner is fenced.
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
