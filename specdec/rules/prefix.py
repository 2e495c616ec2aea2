"""Prefixes of token sequences: the common length of two, and the hash that fences a draft by its prefix."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence


class PrefixHash:
    """A 64-bit hash of a token sequence; extending it hashes only the new tokens."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._state = hashlib.blake2b(array("q", tokens).tobytes(), digest_size=8)

    def extended(self, tokens: Iterable[int]) -> "PrefixHash":
        """The hash of this prefix followed by `tokens`; this object does not change."""
        longer = PrefixHash.__new__(PrefixHash)
        longer._state = self._state.copy()
        longer._state.update(array("q", tokens).tobytes())
        return longer

    @property
    def value(self) -> int:
        """The unsigned 64-bit value, equal on all machines with the same byte order."""
        return int.from_bytes(self._state.digest(), "little")


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two sequences."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
