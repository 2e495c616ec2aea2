"""Which sequences have KV: which get it, which may grow, and which give it up. Runs on the model thread."""

import time
from collections.abc import Callable

from specdec.engine import SequenceMemory
from specdec.engine.protocol import PromptReader
from verifier_service.backends.batch_plan import Row

IDLE_SECONDS = 1.0
"""A sequence without a row for so long gives up its KV to any that waits."""


class KvAdmission:
    """The sequences that have KV. One that gives it up loses time and nothing else: it computes its tokens again.

    The first in rank can take the KV of all others, and a sequence whose limit does not fit alone is never let in: so
    there is always one that makes progress, and it stays the first until it ends.
    """

    def __init__(self, engine: SequenceMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._engine = engine
        self._clock = clock
        self._ranks: dict[str, float] = {}
        """The rank of each sequence that has KV, by its KV name."""
        self._used: dict[str, float] = {}
        """When each of them last had a row."""
        self.preempted = 0
        """How often a sequence has given up its KV to another."""

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, kv_name: object) -> bool:
        return kv_name in self._ranks

    def admit(self, row: Row) -> bool:
        """Give KV to the sequence of a row, if need be that of sequences which are idle, whatever their rank.

        So a caller who does not read cannot keep others out. A prompt that is scored is computed from its beginning.

        Returns:
            False when there is no room now.
        """
        known = row.tokens if row.scores is None else ()
        while not self._engine.admit(row.kv_name, row.limit, known, row.call.cache_salt):
            idle = min(self._used, key=self._used.__getitem__, default=None)
            if idle is None or self._used[idle] > self._clock() - IDLE_SECONDS:
                return False
            self._preempt(idle)
        if isinstance(self._engine, PromptReader):
            self._engine.read_prompt(row.kv_name, row.call.prompt_len)
        self._ranks[row.kv_name] = row.rank
        self.touch(row.kv_name)
        return True

    def touch(self, kv_name: str) -> None:
        """Note that a sequence has a row now."""
        if kv_name in self._ranks:
            self._used[kv_name] = self._clock()

    def release(self, kv_name: str) -> None:
        """Free the KV of a sequence; without effect when it has none."""
        if self._ranks.pop(kv_name, None) is not None:
            del self._used[kv_name]
            self._engine.release(kv_name)

    def reserve(self, kv_name: str, length: int) -> bool:
        """Have memory for `length` tokens of a sequence, taken from those behind it in rank if need be.

        Returns:
            False when there are none behind it: it has given up its own KV.
        """
        while not self._engine.reserve(kv_name, length):
            last = max(self._ranks, key=self._ranks.__getitem__)
            self._preempt(last)
            if last == kv_name:
                return False
        return True

    def _preempt(self, kv_name: str) -> None:
        self.release(kv_name)
        self.preempted += 1
