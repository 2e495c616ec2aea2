"""Protocols of the draft sources without a model."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


class DraftSource(Protocol):
    """Guesses the continuation of one sequence.

    A guess is a function of the tokens read. It is not sampled, so its distribution q̂ is a point mass.
    """

    def read(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to those read before."""

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that may follow the tokens read and then `drafts`; empty if the source has no
        guess.

        The source learns neither from `drafts` nor from the returned tokens.
        """


@runtime_checkable
class CountedSource(DraftSource, Protocol):
    """A source whose guesses come from counts, which can serve as the distribution of sampled drafts."""

    def followers(self, drafts: Sequence[int]) -> Mapping[int, int] | None:
        """Return how often each token followed what precedes the next one; None without a guess.

        Args:
            drafts: tokens after the tokens read.
        """
