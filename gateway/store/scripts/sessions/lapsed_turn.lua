-- uses: clock, sessions/shared
-- KEYS: of the session.
-- OK tenant turn ms-since-the-end-of-its-lease | LIVE | NONE (the turn is done or released, or the session is gone)
local m = redis.call('HMGET', KEYS[1], 'ten', 'turn', 'st', 'lu')
if m[3] ~= 'GEN' or tonumber(m[4]) == 0 then
  redis.call('ZREM', KEYS[6], id_of(KEYS[1]))
  return {'NONE'}
end
local silent = clock() - tonumber(m[4])
if silent < 0 then return {'LIVE'} end
return {'OK', m[1], m[2], tostring(silent)}
