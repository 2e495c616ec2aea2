"""`Told` in memory that the verifier and the process of its target share: neither waits for the other."""

import mmap
import os

from typing_extensions import override

from verifier_service.backends.batch_plan import Row
from verifier_service.backends.told import Told

_SEQUENCES = 65_535
"""More than a verifier has, those that wait for room included."""


class SharedTold(Told):
    """What one process writes and the other reads."""

    def __init__(self, memory: int) -> None:
        """Share the memory of a file descriptor, as `shared_memory` makes it."""
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
        """Nothing yet: the sequence keeps its cell until the other process is told of its end."""

    def place(self, kv_name: str) -> int:
        """The cell of a sequence, which the writer chooses; 0 where there is none left, so that nothing runs ahead."""
        if kv_name not in self._places:
            self._places[kv_name] = place = self._free.pop() if self._free else 0
            if place:
                self._cells[place] = 0
        return self._places[kv_name]

    def put(self, kv_name: str, place: int) -> None:
        """Note, where it is read, which cell the writer has chosen."""
        self._places[kv_name] = place

    def leave(self, kv_name: str) -> None:
        """Forget, where it is read, a sequence that has ended."""
        self._places.pop(kv_name, None)

    def free(self, kv_name: str) -> None:
        """Let another sequence have the cell of one that has ended, of which the other process is told now."""
        if place := self._places.pop(kv_name, 0):
            self._free.append(place)


def shared_memory(sequences: int = _SEQUENCES) -> int:
    """A file descriptor of memory for one `SharedTold` in each of two processes, with cells for so many sequences."""
    memory = os.memfd_create("specdec-told")
    os.ftruncate(memory, 8 * (1 + sequences))  # integers of 64 bits: whether to stop, and one for each sequence
    return memory
