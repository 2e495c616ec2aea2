"""What a session needs of a source of drafts, and the source that has none."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.trees.tree import TreeDraft
from specdec.wire.generation import Fallback
from verifier_service.backends.batch_plan import Gathers


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft to verify in a round."""

    draft: Draft | TreeDraft = NO_DRAFT
    fallback: Fallback = Fallback.NONE
    """Why the draft is empty although one was wanted."""
    waited: float = 0.0
    """Seconds that the round waited for the draft."""
    awaited: int = 0
    """Drafts that the round waited for; those that its drafter could not make are not among them."""
    drafter: str = ""
    """Kind of what made the draft."""
    local: bool = False
    """Whether no drafter was asked, so that the round says nothing about one."""
    network: float = 0.0
    """Of the seconds waited, those of the way to the drafter and back, as pings measure it."""


class Drafts:
    """A session's source of drafts. This one is for sessions that do not speculate: it does nothing."""

    @property
    def gathers(self) -> Gathers:
        """Whether the next pass waits for a round that waits for these drafts."""
        return Gathers.NOT

    @property
    def guesses(self) -> bool:
        """Whether a round is likely to have a draft also where γ is 0."""
        return False

    def source(self) -> str | None:
        """Names what the drafts are made with, and how; None while there is nothing that drafts."""
        return None

    def begin(self, gamma: int) -> None:
        """Order a first draft of γ tokens."""

    def guess(self) -> Proposal:
        """What can be proposed without a wait; all that a round has where γ is 0."""
        return Proposal()

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        """Begin the wait for up to `gamma` drafts of a round.

        Args:
            changed: called when `proposal` may have another answer than before; it must do no more than note that.
        """

    def proposal(self) -> Proposal | None:
        """The draft of the round that was requested, the guess if there is one; None while a wait for it pays."""
        return Proposal()

    @property
    def patience(self) -> float:
        """Seconds after which the wait is over, whatever comes; infinite where only `changed` or `hurry` end it."""
        return math.inf

    def hurry(self) -> None:
        """End the wait of a round for which the next pass does not wait."""

    def declined(self) -> Fallback:
        """Why a round that might draft has γ = 0."""
        return Fallback.NONE

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Report what a verdict on `judged` drafts committed, and order the next γ drafts."""

    def distrust(self) -> None:
        """Take no more drafts from the drafter of the last one: it could not be verified."""

    def close(self) -> None:
        """End the session."""
