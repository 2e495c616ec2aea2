"""Interface of a session's source of drafts. The base class is the source without drafts."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.trees.tree import TreeDraft
from specdec.wire.features import Features
from specdec.wire.generation import Fallback
from verifier_service.backends.batch_plan import Gathers


class Proposal(NamedTuple):
    """The draft to verify in a round."""

    draft: Draft | TreeDraft = NO_DRAFT
    fallback: Fallback = Fallback.NONE
    """Reason that the draft is empty although one was requested."""
    waited: float = 0.0
    """Seconds that the round waited for the draft."""
    awaited: int = 0
    """Number of drafts that the round waited for, without those that the drafter could not make."""
    drafter: str = ""
    """Kind of the source or drafter that made the draft."""
    local: bool = False
    """Whether no drafter was asked, so that the round gives no information about drafters."""
    head: int = 0
    """Number of tokens that the target's head drafts for the round, just before its pass; `draft` is empty then."""
    siblings: bool = False
    """Whether the head drafts a second token for the first position, too."""
    network: float = 0.0
    """Network part of `waited` in seconds, from the round trip measured by pings."""


class Drafts:
    """A session's source of drafts. The base class serves sessions that do not speculate and does nothing."""

    @property
    def gathers(self) -> Gathers:
        """Policy for whether the next pass waits for a round that waits for these drafts."""
        return Gathers.NOT

    @property
    def reads_states(self) -> bool:
        """Whether a head of the target may draft, so that the states of the sequence are kept from its admission on."""
        return False

    @property
    def guesses(self) -> bool:
        """Whether a round with γ = 0 is still likely to have a draft."""
        return False

    def source(self) -> str | None:
        """Return the name of the model and method of the drafts, or None while no drafter is available."""
        return None

    def begin(self, gamma: int) -> None:
        """Request a first draft of γ tokens."""

    def guess(self) -> Proposal:
        """Return a proposal without waiting. A round with γ = 0 has no other."""
        return Proposal()

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        """Begin to wait for up to `gamma` drafts of a round.

        Args:
            gamma: number of drafts requested.
            changed: called when the result of `proposal` may have changed. It must return quickly.
        """

    def proposal(self) -> Proposal | None:
        """Return the proposal of the requested round, or None while waiting for it pays."""
        return Proposal()

    @property
    def patience(self) -> float:
        """Seconds until the wait times out; infinite if only `changed` or `stop_waiting` end it."""
        return math.inf

    def stop_waiting(self) -> None:
        """End the wait of a round that the next pass does not wait for."""

    def declined(self) -> Fallback:
        """Return the reason that a round which might draft has γ = 0."""
        return Fallback.NONE

    def read(self, features: Features) -> None:
        """Receive features of committed tokens, some of which the next `commit` reports."""

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Report the tokens committed by a verdict on `judged` drafts, and request the next γ drafts."""

    def distrust(self) -> None:
        """Stop using the drafter of the last draft, which could not be verified."""

    def close(self) -> None:
        """End the session."""
