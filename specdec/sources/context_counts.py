"""Counts of the tokens that followed each context: sparse, for any vocabulary size, and bounded in memory."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Context = tuple[int, ...]


class Followers:
    """Counts of the tokens that followed one context, with the most frequent always at hand."""

    __slots__ = ("_most", "best", "counts")

    def __init__(self, first: int) -> None:
        self.best = first
        """Most frequent token; the latest one on a tie."""
        self._most = 1
        self.counts = {first: 1}

    def add(self, token: int) -> None:
        count = self.counts[token] = self.counts.get(token, 0) + 1
        if count >= self._most:
            self.best, self._most = token, count


class Match(NamedTuple):
    """Most frequent follower of the longest known context."""

    length: int
    """Length of the context, in tokens."""
    token: int


Keys = list[tuple[int, int]]
"""Contexts that end at one position, longest first: length and hash of each."""


def keys(end: Context, lengths: Sequence[int]) -> Keys:
    """Return the contexts at the end of `end`, longest first, without lengths that exceed it."""
    return [(length, hash(end[-length:])) for length in lengths if length <= len(end)]


class ContextCounts:
    """Counts the followers of contexts. Updates and lookups take constant time."""

    def __init__(self) -> None:
        # Most contexts occur once: their only follower is stored directly, to save memory.
        self._followers: dict[int, Followers | int] = {}

    def add(self, contexts: Keys, token: int) -> None:
        """Count `token` as a follower of these contexts."""
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
        """Return the most frequent follower of the first known context, or None."""
        for length, key in contexts:
            known = self._followers.get(key)
            if known is not None:
                return Match(length, known if isinstance(known, int) else known.best)
        return None

    def followers(self, contexts: Keys) -> Mapping[int, int] | None:
        """Return how often each token followed the first known context, or None."""
        for _, key in contexts:
            known = self._followers.get(key)
            if known is not None:
                return {known: 1} if isinstance(known, int) else known.counts
        return None


class RecentCounts:
    """Counts of at least the last `window` tokens and at most twice as many.

    Entries are never removed. When the table is full, a second table with the newer half replaces it.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._counts = ContextCounts()
        self._newer = ContextCounts()
        self._size = 0

    def add(self, contexts: Keys, token: int) -> None:
        """Count `token` as a follower of these contexts."""
        self._counts.add(contexts, token)
        if self._size >= self._window:
            self._newer.add(contexts, token)
        self._size += 1
        if self._size == 2 * self._window:
            self._counts, self._newer, self._size = self._newer, ContextCounts(), self._window

    def find(self, contexts: Keys) -> Match | None:
        """Return the most frequent follower of the first known context, or None."""
        return self._counts.find(contexts)

    def followers(self, contexts: Keys) -> Mapping[int, int] | None:
        """Return how often each token followed the first known context, or None."""
        return self._counts.followers(contexts)
