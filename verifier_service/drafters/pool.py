"""The drafters there are, and which one a session should use."""

import math
from collections.abc import Container, Iterable, Sequence

from specdec.serving.rendezvous import ranking
from verifier_service.drafters.link import DrafterLink, LinkState, LinkStatus
from verifier_service.generation.rounds import Fallback

_NEAR = 0.001
"""Seconds beyond the least round trip that are as good as that: within a zone it is less, to another one often more."""
_SHARE = 1.25
"""How much more than an even share of the sessions a near drafter may have before those that are far are no worse."""


class DrafterPool:
    """The links there are."""

    def __init__(self, links: Iterable[DrafterLink] = ()) -> None:
        self._by_address = {link.address: link for link in links}

    def add(self, link: DrafterLink) -> None:
        """A drafter was found."""
        self._by_address[link.address] = link

    def remove(self, address: str) -> None:
        """A drafter is gone: its sessions go on elsewhere."""
        self._by_address.pop(address).gone()

    def choose(self, session_id: str, avoid: Container[str]) -> DrafterLink | None:
        """The ready link of the greatest hash with the session, but none whose address is in `avoid`.

        A session keeps its drafter while that lives, and only a lost drafter's sessions move (rendezvous hashing).
        Where some drafters are far, in another zone, those that are near are taken as long as they have room.
        """
        ready = [link for link in self._links if link.state is LinkState.READY and link.address not in avoid]
        candidates = [link.address for link in _near(ready) or ready]
        return self._by_address[ranking(session_id, candidates)[0]] if candidates else None

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

    @property
    def _links(self) -> Iterable[DrafterLink]:
        return self._by_address.values()


def _near(links: Sequence[DrafterLink]) -> list[DrafterLink]:
    """Those of the least distance, without any that has much more than its share; none when all are as near."""
    reach = min((link.distance for link in links), default=0.0) + _NEAR
    near = [link for link in links if link.distance <= reach]
    if len(near) == len(links):
        return []
    share = math.ceil(_SHARE * (sum(link.sessions for link in links) + 1) / len(links))
    return [link for link in near if link.sessions < share]
