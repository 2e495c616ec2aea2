"""Sequences of which nothing but a length is kept: there is always room for one more."""

from collections.abc import Sequence

from specdec.engine.kv_pool import KvMemory
from specdec.errors import InternalError

UNBOUNDED = 2**31 - 1
"""Context length of what reads no more than the last tokens."""


class Lengths:
    """The bookkeeping that a Drafter or a Model without KV shares."""

    memory = KvMemory(budget=0, live=0, cached=0)

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def can_ever_admit(self, limit: int) -> bool:
        """Whether it is shorter than any sequence gets."""
        return limit <= UNBOUNDED

    def admit(self, key: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """There is room; nothing is computed yet."""
        if key in self._lengths:
            raise InternalError(f"sequence {key} is admitted already")
        self._lengths[key] = 0
        return True

    def reserve(self, key: str, length: int) -> bool:
        """There is room."""
        return True

    def release(self, key: str) -> None:
        """Forget the sequence."""
        del self._lengths[key]

    def length(self, key: str) -> int:
        """Tokens it was told of."""
        return self._lengths[key]

    def truncate(self, key: str, length: int) -> None:
        """Count at most the first `length` tokens."""
        self._lengths[key] = min(length, self._lengths[key])

    def extend(self, key: str, count: int) -> None:
        """Count `count` more."""
        self._lengths[key] += count
