"""Answers that their clients do not read: each ends after a while, and sooner where a caller has many of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import Scope

from gateway.fair_queue import Share

UNREAD_SECONDS = 30.0
"""Seconds for which a client may leave an answer unread; then its connection is closed, and its work ends."""
CROWDED_SECONDS = 3.0
"""The same where its address, or its user there, has as many unread answers as may last."""
MOST_OF_ADDRESS = 32
"""Unread answers of one address that may last, those of all its users together."""
MOST_OF_USER = 16
"""Unread answers of one user, or of one tenant of keys, that may last."""
_SHARE = "share"


class UnreadAnswers:
    """How many unread answers each caller has, over all connections of a server."""

    def __init__(self) -> None:
        self._counts: Counter[Share | str] = Counter()

    def add(self, share: Share) -> float:
        """Count an answer that its client has ceased to read; the seconds for which that may last."""
        self._counts.update(_keys(share))
        crowded = self._counts[share.client] > MOST_OF_ADDRESS or self._counts[share] > MOST_OF_USER
        return CROWDED_SECONDS if crowded else UNREAD_SECONDS

    def remove(self, share: Share) -> None:
        """Count an answer no more that is read again, or whose connection has ended."""
        self._counts.subtract(_keys(share))
        for key in _keys(share):
            if self._counts[key] <= 0:
                del self._counts[key]


def note_share(scope: Scope, share: Share) -> None:
    """Note whose answer a request gets, once its user is known."""
    scope.setdefault("state", {})[_SHARE] = share


def answered_share(scope: Mapping[str, Any]) -> Share:
    """Whose answer a request gets: as noted, or all of its address."""
    noted: Share | None = scope.get("state", {}).get(_SHARE)
    return noted or Share((scope.get("client") or ("",))[0])


def _keys(share: Share) -> Iterable[Share | str]:
    return (share.client, share)
