"""Drafts of the target's head, which the model's thread makes just before the pass that judges them."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from specdec.wire.generation import Fallback
from verifier_service.drafts.drafts import Drafts, Proposal

HEAD = "head"
"""Name of the head in requests and rounds."""


class HeadDrafts(Drafts):
    """Requests each draft with its round, since it depends on the states of the round before.

    So a draft cannot be made ahead. The pass waits for the drafts of all its rows, which one batch of the head makes.
    """

    def __init__(self, source: str, siblings: Callable[[], bool]) -> None:
        """Create the drafts of one session.

        Args:
            source: name of the head and its method.
            siblings: returns whether a second draft for the first position pays.
        """
        self._source = source
        self._siblings = siblings
        self._gamma = 0
        self._trusted = True
        self._first = True
        """Whether the states of the last tokens are missing: the pass of the first round computes them."""

    @property
    @override
    def reads_states(self) -> bool:
        return True

    @override
    def source(self) -> str | None:
        return self._source if self._trusted else None

    @override
    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        self._gamma = gamma if self._trusted else 0

    @override
    def proposal(self) -> Proposal:
        if self._first and self._gamma:
            return Proposal(fallback=Fallback.FIRST_ROUND)
        return Proposal(drafter=HEAD, head=self._gamma, siblings=self._gamma > 0 and self._siblings())

    @override
    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        self._first = False

    @override
    def distrust(self) -> None:
        self._trusted = False
