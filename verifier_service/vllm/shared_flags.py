"""`RunAheadFlags` flags in memory shared by the verifier and the process of its target, without locks."""

import mmap
import os

from typing_extensions import override

from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_step import RunAheadFlags

_SEQUENCES = 65_535
"""Number of cells for sequences. A verifier has fewer, including those that wait for admission."""


class SharedFlags(RunAheadFlags):
    """`RunAheadFlags` flags that the verifier writes and the target's process reads."""

    def __init__(self, memory: int) -> None:
        """Map the memory of a file descriptor created by `shared_memory`."""
        self._cells = memoryview(mmap.mmap(memory, 0)).cast("q")
        self._places: dict[str, int] = {}
        self._free = list(range(1, len(self._cells)))

    @override
    def stop(self) -> None:
        self._cells[0] = 1

    @override
    def go(self) -> None:
        self._cells[0] = 0

    @property
    @override
    def stopped(self) -> bool:
        return bool(self._cells[0])

    @override
    def ask(self, row: Row) -> None:
        if place := self._places[row.kv_name]:
            self._cells[place] = row.goal

    @override
    def asked(self, row: Row) -> bool:
        place = self._places[row.kv_name]
        return place > 0 and self._cells[place] == row.goal

    @override
    def forget(self, kv_name: str) -> None:
        """Do nothing. The sequence keeps its cell until `free`, when its end is sent to the other process."""

    def place(self, kv_name: str) -> int:
        """Return the cell of a sequence, allocated by the writer. 0 if none is left: then its rows do not run ahead."""
        if kv_name not in self._places:
            self._places[kv_name] = place = self._free.pop() if self._free else 0
            if place:
                self._cells[place] = 0
        return self._places[kv_name]

    def put(self, kv_name: str, place: int) -> None:
        """Record in the reading process which cell the writer has allocated."""
        self._places[kv_name] = place

    def leave(self, kv_name: str) -> None:
        """Drop an ended sequence in the reading process."""
        self._places.pop(kv_name, None)

    def free(self, kv_name: str) -> None:
        """Free the cell of an ended sequence. Called when its end is sent to the other process."""
        if place := self._places.pop(kv_name, 0):
            self._free.append(place)


def shared_memory(sequences: int = _SEQUENCES) -> int:
    """Create shared memory with cells for `sequences` sequences; return its file descriptor."""
    memory = os.memfd_create("specdec-flags")
    os.ftruncate(memory, 8 * (1 + sequences))  # 64-bit integers: the stop flag, and one for each sequence
    return memory
