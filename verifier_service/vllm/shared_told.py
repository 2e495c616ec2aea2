"""`Told` in memory that the verifier and the process of its target share: neither waits for the other."""

import mmap
import os

from typing_extensions import override

from verifier_service.batching.batch_plan import Row
from verifier_service.batching.told import Told

_CELLS = 65_536
"""Integers of 64 bits: whether to stop, and one for each sequence; sequences are far fewer."""


class SharedTold(Told):
    """What one process writes and the other reads."""

    def __init__(self, memory: int) -> None:
        """Share the memory of a file descriptor, as `shared_memory` makes it."""
        self._cells = memoryview(mmap.mmap(memory, 8 * _CELLS)).cast("q")
        self._places: dict[str, int] = {}
        self._free = list(range(1, _CELLS))

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
        self._cells[self._places[row.kv_name]] = row.goal

    @override
    def asked(self, row: Row) -> bool:
        return self._cells[self._places[row.kv_name]] == row.goal

    @override
    def forget(self, kv_name: str) -> None:
        """The sequence has ended; in the process that chose its place."""
        if kv_name in self._places:
            place = self._places.pop(kv_name)
            self._cells[place] = 0
            self._free.append(place)

    def place(self, kv_name: str) -> int:
        """The cell of a sequence, which the writer chooses."""
        if kv_name not in self._places:
            self._places[kv_name] = self._free.pop()
        return self._places[kv_name]

    def put(self, kv_name: str, place: int) -> None:
        """Note, where it is read, which cell the writer has chosen."""
        self._places[kv_name] = place

    def leave(self, kv_name: str) -> None:
        """Forget, where it is read, a sequence that has ended."""
        self._places.pop(kv_name, None)


def shared_memory() -> int:
    """A file descriptor of memory for one `SharedTold` in each of two processes."""
    memory = os.memfd_create("specdec-told")
    os.ftruncate(memory, 8 * _CELLS)
    return memory
