"""What a session asks of a source of drafts, and the source that has none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.rules.draft import NO_DRAFT, Draft
from verifier_service.generation.rounds import Fallback


@dataclass(frozen=True, slots=True)
class Proposal:
    """What there is to verify this round."""

    draft: Draft = NO_DRAFT
    fallback: Fallback = Fallback.NONE
    waited: float = 0.0
    """Seconds."""


class Drafts(Protocol):
    """A session's source of drafts."""

    def begin(self, gamma: int) -> None:
        """Ask for a first draft."""

    async def propose(self, gamma: int, *, patient: bool) -> Proposal:
        """Up to `gamma` drafts; an impatient caller takes what is there."""

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Tell what a verdict on `judged` drafts committed, and how many are wanted next."""

    def distrust(self) -> None:
        """The last draft could not be verified: take no more from where it came from."""

    def close(self) -> None:
        """The session ends."""


class NoDrafts:
    """Of a session that does not speculate."""

    def begin(self, gamma: int) -> None:
        """Nothing to ask."""

    async def propose(self, gamma: int, *, patient: bool) -> Proposal:
        """Always an empty draft."""
        return Proposal()

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Nobody to tell."""

    def distrust(self) -> None:
        """Nobody to distrust."""

    def close(self) -> None:
        """Nothing to end."""
