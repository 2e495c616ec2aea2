-- For scripts on the sessions of a pass. KEYS: the meta of each, then the leases of all.
local leases = KEYS[#KEYS]
-- The answer of `step`. An error of the session's own keys is the answer of that session. Any other, as of a server
-- that refuses writes, came before the step wrote anything: it comes again, and ends the script as it is.
local function answer_of(step, ...)
  local done, answer = pcall(step, ...)
  if done then return answer end
  local said = type(answer) == 'table' and answer.err or tostring(answer)
  for _, own in ipairs({'WRONGTYPE', 'XADD', 'attempt to'}) do
    if said:find(own, 1, true) then return 'SPOILED' end
  end
  return step(...)
end
