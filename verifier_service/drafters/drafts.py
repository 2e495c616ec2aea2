"""What a session needs of a source of drafts, and the source that has none."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.wire.generation import Fallback


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft to verify in a round."""

    draft: Draft = NO_DRAFT
    fallback: Fallback = Fallback.NONE
    """Why the draft is empty although one was wanted."""
    waited: float = 0.0
    """Seconds that the round waited for the draft."""
    drafter: str = ""
    """Kind of what made the draft."""
    local: bool = False
    """Whether no drafter was asked, so that the round says nothing about one."""


class Drafts:
    """A session's source of drafts. This one is for sessions that do not speculate: it does nothing."""

    def begin(self, gamma: int) -> None:
        """Order a first draft of γ tokens."""

    async def propose(self, gamma: int, *, patient: bool) -> Proposal:
        """Up to `gamma` drafts; a patient caller waits for them, any other takes those that have come."""
        return Proposal()

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Report what a verdict on `judged` drafts committed, and order the next γ drafts."""

    def distrust(self) -> None:
        """Take no more drafts from the drafter of the last one: it could not be verified."""

    def close(self) -> None:
        """End the session."""
