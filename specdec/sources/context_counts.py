"""How often each token followed each context: sparse, without a limit on the vocabulary, and bounded in its memory."""

from collections.abc import Sequence
from typing import NamedTuple

Context = tuple[int, ...]


class Followers:
    """The tokens that followed one context, of which the most frequent is always known."""

    __slots__ = ("_counts", "_most", "best")

    def __init__(self, first: int) -> None:
        self.best = first
        """The most frequent token; of several, the one that came last."""
        self._most = 1
        self._counts = {first: 1}

    def add(self, token: int) -> None:
        count = self._counts[token] = self._counts.get(token, 0) + 1
        if count >= self._most:
            self.best, self._most = token, count


class Match(NamedTuple):
    """What followed the longest context that is known."""

    length: int
    """Tokens of that context."""
    token: int


Keys = list[tuple[int, int]]
"""The contexts that end at one place, longest first: the length of each, and its hash."""


def keys(end: Context, lengths: Sequence[int]) -> Keys:
    """The contexts of these lengths, longest first, that `end` is long enough for."""
    return [(length, hash(end[-length:])) for length in lengths if length <= len(end)]


class ContextCounts:
    """Counts what follows contexts. An update or a look costs the same however much was counted."""

    def __init__(self) -> None:
        # A context that was seen once, as most are, has its one follower here itself, which takes little memory.
        self._followers: dict[int, Followers | int] = {}

    def add(self, contexts: Keys, token: int) -> None:
        """Count that `token` followed these contexts."""
        followers = self._followers
        for _, key in contexts:
            known = followers.get(key)
            if known is None:
                followers[key] = token
            elif isinstance(known, int):
                followers[key] = seen = Followers(known)
                seen.add(token)
            else:
                known.add(token)

    def find(self, contexts: Keys) -> Match | None:
        """The most frequent follower of the first of these contexts that is known."""
        for length, key in contexts:
            known = self._followers.get(key)
            if known is not None:
                return Match(length, known if isinstance(known, int) else known.best)
        return None


class RecentCounts:
    """Counts of the last `window` tokens at least, and of twice as many at most.

    Nothing is ever taken out: when it is full, a second table takes over, which has the newer half.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._counts = ContextCounts()
        self._newer = ContextCounts()
        self._size = 0

    def add(self, contexts: Keys, token: int) -> None:
        """Count that `token` followed these contexts."""
        self._counts.add(contexts, token)
        if self._size >= self._window:
            self._newer.add(contexts, token)
        self._size += 1
        if self._size == 2 * self._window:
            self._counts, self._newer, self._size = self._newer, ContextCounts(), self._window

    def find(self, contexts: Keys) -> Match | None:
        """The most frequent follower of the first of these contexts that is known."""
        return self._counts.find(contexts)
