-- The server's clock, and numbers as text.
local function clock()  -- in ms; then seconds and µs, as text
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1], t[2]
end
local function written(number) return string.format('%.0f', number) end
