-- uses: clock
-- KEYS: of the session. ARGV: tenant, turn, position in the stream after which to read, or '' for all of the turn
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
local left = m[4] ~= '' and math.max(0, tonumber(m[5]) - clock()) or 0
return {'OK', m[2] == ARGV[2] and m[3] or 'DONE', tostring(left), prompt, entries}
