"""Admission, growth and preemption of sequences' KV. Runs on the model thread."""

import time
from collections.abc import Callable

from specdec.engine import SequenceMemory
from specdec.engine.protocol import PromptReader
from verifier_service.backends.batch_plan import Row

IDLE_SECONDS = 1.0
"""Seconds without a row after which any waiting sequence may preempt a sequence."""


class KvAdmission:
    """Set of the sequences that have KV. A preempted sequence recomputes its tokens, which costs only time.

    The sequence with the lowest rank can preempt all others, and a sequence whose limit does not fit an empty engine is
    never admitted. So that sequence always makes progress, and it keeps its place until it ends.
    """

    def __init__(self, engine: SequenceMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty set; `clock` returns seconds."""
        self._engine = engine
        self._clock = clock
        self._ranks: dict[str, float] = {}
        """Rank of each sequence that has KV, by KV name."""
        self._used: dict[str, float] = {}
        """Time of the last row of each of these sequences, by KV name."""
        self.preempted = 0
        """Number of preemptions."""

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, kv_name: object) -> bool:
        return kv_name in self._ranks

    def admit(self, row: Row) -> bool:
        """Admit the sequence of a row. If memory is short, preempt idle sequences regardless of their rank.

        So a caller that does not read cannot block others. A prompt to be scored does not use the prefix cache.

        Returns:
            False if there is no room now.
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
        """Record that a sequence has a row now."""
        if kv_name in self._ranks:
            self._used[kv_name] = self._clock()

    def release(self, kv_name: str) -> None:
        """Free the KV of a sequence. Does nothing if it has none."""
        if self._ranks.pop(kv_name, None) is not None:
            del self._used[kv_name]
            self._engine.release(kv_name)

    def reserve(self, kv_name: str, length: int) -> bool:
        """Reserve KV for `length` tokens of a sequence. If memory is short, preempt sequences, greatest rank first.

        Returns:
            False if the sequence itself had the greatest rank and was preempted.
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
