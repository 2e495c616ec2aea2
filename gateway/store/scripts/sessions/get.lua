-- KEYS: of the session. ARGV: tenant, request id
-- OK turn state n model ttl-ms-left turn-of-the-request-or-'' | EXPIRED | NONE
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'n', 'fp')
if m[1] ~= ARGV[1] then return {'NONE'} end
if redis.call('STRLEN', KEYS[2]) ~= m[4] * 4 then return {'EXPIRED'} end
local seen = redis.call('HGET', KEYS[4], ARGV[2]) or ''
local left = redis.call('PTTL', m[4] == '0' and KEYS[1] or KEYS[2])
return {'OK', m[2], m[3], m[4], m[5], tostring(left), seen:match('%d+') or ''}
