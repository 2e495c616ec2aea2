"""N-grams of the sequence itself: the most frequent follower of its last three, two or one tokens."""

from collections.abc import Mapping, Sequence

from specdec.sources.context_counts import Context, RecentCounts, keys

_CONTEXTS = (3, 2, 1)
"""Context lengths of the orders 4, 3 and 2."""


class Ngram:
    """A DraftSource of n-grams of order 2 to 4 over prompt and output. The latest follower wins a tie."""

    def __init__(self, window: int) -> None:
        """Count at least the last `window` tokens and at most twice as many."""
        self._counts = RecentCounts(window)
        self._end: Context = ()

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._counts.add(keys(self._end, _CONTEXTS), token)
            self._end = (*self._end[-_CONTEXTS[0] + 1 :], token)

    def draft(self, drafts: Sequence[int], most: int) -> list[int]:
        end, guesses = (*self._end, *drafts)[-_CONTEXTS[0] :], list[int]()
        while len(guesses) < most and (match := self._counts.find(keys(end, _CONTEXTS))) is not None:
            guesses.append(match.token)
            end = (*end[-_CONTEXTS[0] + 1 :], match.token)
        return guesses

    def followers(self, drafts: Sequence[int]) -> Mapping[int, int] | None:
        """Return how often each token followed the longest known context at the end of `drafts`; None without one."""
        return self._counts.followers(keys((*self._end, *drafts)[-_CONTEXTS[0] :], _CONTEXTS))
