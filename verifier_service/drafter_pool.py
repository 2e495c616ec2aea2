"""The drafters there are, and which one a session should use."""

import hashlib
from collections.abc import Container, Sequence

from verifier_service.link import DrafterLink, LinkState, LinkStatus
from verifier_service.rounds import Fallback


class DrafterPool:
    """A fixed set of links."""

    def __init__(self, links: Sequence[DrafterLink]) -> None:
        self._links = tuple(links)

    def choose(self, session_id: str, avoid: Container[str]) -> DrafterLink | None:
        """The ready link of the greatest hash with the session, but none whose address is in `avoid`.

        A session keeps its drafter while that lives, and only a lost drafter's sessions move (rendezvous hashing).
        """
        ready = [link for link in self._links if link.state is LinkState.READY and link.address not in avoid]
        return max(ready, key=lambda link: _weight(link.address, session_id), default=None)

    def absence(self) -> Fallback:
        """Why `choose` finds nothing."""
        states = {link.state for link in self._links}
        if LinkState.REFUSED in states and LinkState.READY not in states:
            return Fallback.TOKENIZER
        return Fallback.UNAVAILABLE

    def step_seconds(self) -> float | None:
        """What a draft step takes, by the drafters' own account; None when no one says."""
        known = [link.step_seconds for link in self._links if link.state is LinkState.READY and link.step_seconds > 0]
        return sum(known) / len(known) if known else None

    def statuses(self) -> list[LinkStatus]:
        """Every drafter's state."""
        return [link.status for link in self._links]


def _weight(address: str, session_id: str) -> bytes:
    return hashlib.blake2b(f"{address}\0{session_id}".encode(), digest_size=8).digest()
