"""Sequences of which only the length is kept, so there is always memory for one more."""

from collections.abc import Sequence

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError

UNBOUNDED = 2**31 - 1
"""Context length of a drafter that reads only the last tokens."""


class SequenceLengths:
    """The SequenceMemory of a drafter without KV."""

    memory = KvMemory(budget=0, live=0, cached=0)

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def can_ever_admit(self, limit: int) -> bool:
        return limit <= UNBOUNDED

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        if session in self._lengths:
            raise InternalError(f"sequence {session} is admitted already")
        self._lengths[session] = 0
        return True

    def reserve(self, session: str, length: int) -> bool:
        return True

    def release(self, session: str) -> None:
        del self._lengths[session]

    def length(self, session: str) -> int:
        return self._lengths[session]

    def truncate(self, session: str, length: int) -> None:
        self._lengths[session] = length

    def extend(self, session: str, count: int) -> None:
        self._lengths[session] += count
