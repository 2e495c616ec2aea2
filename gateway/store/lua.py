"""What the session scripts share: their sources, and the keys of a session.

Every script is a file of `scripts/`, behind the files that its first line names. It is one atomic step on the keys of
one session, or on each of those of a pass, and its reply begins with a word. Scripts do not roll back: each checks
everything first, and its first write is the only one that the server may refuse. `checked_scripts` puts checksums
around each.

KEYS of a session, which share one hash tag:

1. Meta: a hash. turn (number of the last one), st (its state, GEN or DONE), n (tokens in the log), ep, own and lu
   (epoch, owner, and end of its lease in ms of the server's clock), fp (model), ten (tenant), ttl (ms), fin (finish),
   cx (1 when a cancellation was requested). It outlives the log, so that an expired session differs from no session.
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
import re
from functools import cache
from pathlib import Path

LEASES = "sd:1:lease"
"""The key of the leases of all sessions, without the prefix that keeps deployments on one server apart."""
CANCELLATIONS = "sd:1:cancel:"
"""What the key of an owner's cancellations begins with, behind that prefix."""
SECRET = "sd:1:secret"
"""The key of the secret of all gateways, without that prefix."""
_SCRIPTS = Path(__file__).with_name("scripts")
_USES = re.compile(r"-- uses: (.*)\n")


@cache
def script(name: str) -> str:
    """The source of a script, as `sessions/commit`, behind that of what it uses."""
    source = (_SCRIPTS / f"{name}.lua").read_text()
    uses = _USES.match(source)
    return "".join(map(script, uses[1].split(", "))) + source if uses else source


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
