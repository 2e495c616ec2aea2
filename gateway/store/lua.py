"""Sources of the session scripts, and the keys of a session.

Every script is a file in `scripts/`, appended to the files that its first line names. It is one atomic step on the keys
of one session, or of each session of a pass, and its reply begins with a status word. Scripts do not roll back: each
checks everything first, and its first write is the only one that the server may refuse. `checked_scripts` adds
checksums to each.

KEYS of a session, which share one hash tag:

1. Meta: a hash. turn (number of the last one), st (its state, GEN or DONE), n (tokens in the log), ep, own and lu
   (epoch, owner, and end of its lease in ms of the server's clock), fp (model), ten (tenant), ttl (ms), fin (finish),
   cx (1 when a cancellation was requested). It outlives the log, so that an expired session differs from no session.
2. Log: all tokens, int32 little-endian.
3. Output: a stream with the last two turns. Its ids are turn-position: 2n after the round that made the log n tokens
   long, 2n + 1 for an end without tokens. The first entry of a turn is its opening, 2n of its prompt, with the
   parameters (p). The entries of rounds have tokens (t), finish (f) and note (r).
4. Requests: a hash from request id to its turn and digest.
5. Cancellations: a stream with an entry for each cancelled turn, read by gateways of the previous release.

KEYS 6 is common to all sessions of a prefix: a sorted set from session id to the lease end of its running turn.

The scripts on a pass get the metas of its sessions, then the sorted set. The other keys of a session differ from its
meta in the last letter only, and have the same hash tag.

Each owner has a stream of cancellations: s (session id) and n (turn) of each of its cancelled turns.

The list of a tenant, which no script uses, is a sorted set from session id to the time of its `create`.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

LEASES = "sd:1:lease"
"""Key of the leases of all sessions, without the prefix that separates deployments on one server."""
CANCELLATIONS = "sd:1:cancel:"
"""Beginning of the key of an owner's cancellations, without that prefix."""
SECRET = "sd:1:secret"
"""Key of the secret shared by all gateways, without that prefix."""
_SCRIPTS = Path(__file__).with_name("scripts")
_USES = re.compile(r"-- uses: (.*)\n")


@cache
def script(name: str) -> str:
    """Return the source of a script, such as `sessions/commit`, preceded by the scripts that it uses."""
    source = (_SCRIPTS / f"{name}.lua").read_text()
    uses = _USES.match(source)
    return "".join(map(script, uses[1].split(", "))) + source if uses else source


def keys(session_id: str, prefix: str = "") -> tuple[str, str, str, str, str]:
    """Return the keys of a session, in the scripts' order."""
    tag = f"{prefix}sd:1:{{{session_id}}}"
    return f"{tag}:m", f"{tag}:t", f"{tag}:o", f"{tag}:r", f"{tag}:c"


def meta_key(session_id: str, prefix: str = "") -> str:
    """Return the meta key of a session."""
    return f"{prefix}sd:1:{{{session_id}}}:m"


def cancellations_key(owner: str, prefix: str = "") -> str:
    """Return the key of an owner's cancellations."""
    return f"{prefix}{CANCELLATIONS}{owner}"


def tenant_key(tenant: str, prefix: str = "") -> str:
    """Return the key of a tenant's session list."""
    return f"{prefix}sd:1:tenant:{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
