"""What the session scripts share: the keys of a session, and the Lua functions for its clock, lease and lifetime.

Every script is one atomic step on the keys of one session, and its reply begins with a word. Scripts do not roll back:
each checks everything first, and its first write is the only one that the server may refuse. `checked_scripts` puts
checksums around each.

KEYS of a session, which share one hash tag:

1. Meta: a hash. turn (number of the last one), st (its state, GEN or DONE), n (tokens in the log), ep, own and lu
   (epoch, owner, and end of its lease in ms of the server's clock), fp (model), ten (tenant), ttl (ms), fin (finish),
   cx (1 when a cancellation was requested), xp (when the keys of a running turn were last extended, in ms). It outlives
   the log, so that an expired session differs from no session.
2. Log: all tokens, int32 little-endian.
3. Output: a stream with the last two turns. Its ids are turn-position: 2n after the round that made the log n tokens
   long, 2n + 1 for an end without tokens. The first entry of a turn is its opening, 2n of its prompt, with the
   parameters (p). The entries of rounds have tokens (t), finish (f) and note (r).
4. Requests: a hash from request id to its turn and digest.
5. Cancellations: a stream with an entry for each turn whose owner was told to end it, for gateways of the release
   before this one.

KEYS 6 is common to all sessions of a prefix: a sorted set from session id to the end of the lease of its running turn.

The scripts on a pass get the metas of its sessions, then the sorted set. The other keys of a session have the name of
its meta with another last letter, and the same hash tag.

Each owner has a stream of cancellations: s (session id) and n (turn) of each turn that it was told to end.

No script uses the list of a tenant: a sorted set from session id to the time at which `create` made the session.
"""

import hashlib

LEASES = "sd:1:lease"
"""The key of the leases of all sessions, without the prefix that keeps deployments on one server apart."""
CANCELLATIONS = "sd:1:cancel:"
"""What the key of an owner's cancellations begins with, behind that prefix."""
SECRET = "sd:1:secret"
"""The key of the secret of all gateways, without that prefix."""


def keys(session_id: str, prefix: str = "") -> tuple[str, str, str, str, str]:
    """The keys of a session, in the order in which the scripts take them."""
    tag = f"{prefix}sd:1:{{{session_id}}}"
    return f"{tag}:m", f"{tag}:t", f"{tag}:o", f"{tag}:r", f"{tag}:c"


def meta_key(session_id: str, prefix: str = "") -> str:
    """The first of the keys of a session."""
    return f"{prefix}sd:1:{{{session_id}}}:m"


def cancellations_key(owner: str, prefix: str = "") -> str:
    """The key of the cancellations of an owner's turns."""
    return f"{prefix}{CANCELLATIONS}{owner}"


def tenant_key(tenant: str, prefix: str = "") -> str:
    """The key of the list of a tenant's sessions."""
    return f"{prefix}sd:1:tenant:{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"


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
EXPIRY = r"""
local function expire(session, ms)  -- the session's keys, given without their last letter
  for _, key in ipairs({'t', 'o'}) do redis.call('PEXPIRE', session .. key, ms) end
  for _, key in ipairs({'m', 'r'}) do redis.call('PEXPIRE', session .. key, 2 * ms) end
end
-- While a turn runs, its keys outlive two leases, so that another owner can take it over. Kept for a lease more, they
-- are extended once in a lease, and not by every round.
local function keep(session, ttl, lease_ms)
  expire(session, math.max(tonumber(ttl), 2 * lease_ms) + lease_ms)
  redis.call('HSET', session .. 'm', 'xp', string.format('%.0f', now))
end
local function is_due(extended, lease_ms) return now - tonumber(extended or 0) >= lease_ms end
"""
PASS = r"""
-- The answer of `step`. An error of the session's own keys is the answer of that session; any other ends the script.
local function answer_of(step, ...)
  local done, answer = pcall(step, ...)
  if done then return answer end
  local said = type(answer) == 'table' and answer.err or tostring(answer)
  for _, own in ipairs({'WRONGTYPE', 'XADD', 'attempt to'}) do
    if said:find(own, 1, true) then return 'SPOILED' end
  end
  error(answer, 0)
end
"""
