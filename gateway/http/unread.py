"""Limits on unread answers: each is aborted after a timeout, which is shorter if a caller has many."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import Scope

from gateway.fair_queue import Share

UNREAD_SECONDS = 30.0
"""Seconds that a client may leave an answer unread before its connection is closed and its work ends."""
CROWDED_SECONDS = 3.0
"""Timeout in seconds if the client's address or user already has the most unread answers."""
MOST_OF_ADDRESS = 32
"""Most unread answers of one address, all its users together, with the long timeout."""
MOST_OF_USER = 16
"""Most unread answers of one user, or of one key's tenant, with the long timeout."""
_SHARE = "share"


class UnreadAnswers:
    """Number of unread answers of each caller, over all connections of a server."""

    def __init__(self) -> None:
        self._counts: Counter[Share | str] = Counter()

    def add(self, share: Share) -> float:
        """Count an answer that its client stopped reading; return its timeout in seconds."""
        self._counts.update(_keys(share))
        crowded = self._counts[share.client] > MOST_OF_ADDRESS or self._counts[share] > MOST_OF_USER
        return CROWDED_SECONDS if crowded else UNREAD_SECONDS

    def remove(self, share: Share) -> None:
        """Remove an answer that is read again or whose connection has ended."""
        self._counts.subtract(_keys(share))
        for key in _keys(share):
            if self._counts[key] <= 0:
                del self._counts[key]


def note_share(scope: Scope, share: Share) -> None:
    """Record the owner of a request's answer when its user is known."""
    scope.setdefault("state", {})[_SHARE] = share


def answered_share(scope: Mapping[str, Any]) -> Share:
    """Return the recorded owner of a request's answer, or its address."""
    noted: Share | None = scope.get("state", {}).get(_SHARE)
    return noted or Share((scope.get("client") or ("",))[0])


def _keys(share: Share) -> Iterable[Share | str]:
    return (share.client, share)
