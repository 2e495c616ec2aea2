-- Runs the script in its middle where keys and arguments are those that were sent, as gateway.store.checked_scripts explains.
local function flat(value)  -- with lengths, so that no two values look the same
  if type(value) ~= 'table' then
    value = tostring(value)
    return #value .. ':' .. value
  end
  local parts = {}
  for i = 1, #value do parts[i] = flat(value[i]) end
  return '[' .. table.concat(parts) .. ']'
end
local sent = table.remove(ARGV)
if redis.sha1hex(flat(KEYS) .. flat(ARGV)) ~= sent then return {'', {'GARBLED'}} end
local function run()
SOURCE
end
local reply = run()
return {redis.sha1hex(sent .. flat(reply)), reply}
