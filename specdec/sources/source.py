"""What all sources without a model have in common."""

from collections.abc import Sequence
from typing import Protocol


class DraftSource(Protocol):
    """Guesses how one sequence goes on.

    A guess is a function of what was read. It is not sampled, so its distribution q̂ is a point mass.
    """

    def read(self, tokens: Sequence[int]) -> None:
        """Take committed tokens, behind those that were read before."""

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow the tokens read and then `drafts`; empty without an answer.

        Nothing is learnt from `drafts`, nor from what is returned.
        """
