"""Sequences that join and leave between passes that run ahead."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from verifier_service.backends.batch_plan import Row

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last pass began."""

    ended: Sequence[str] = ()
    """KV names of the sequences that have ended."""
    rows: Sequence[Row] = ()
    """New rows of sequences that had none."""


class PendingChanges:
    """Queue of changes that no pass has taken. One thread calls `add`, another one `begin` and `take`."""

    def __init__(self) -> None:
        self._ended: deque[str] = deque()
        self._rows: deque[Row] = deque()

    def add(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Queue changes for the next pass."""
        self._rows.extend(rows)
        self._ended.extend(ended)

    def begin(self, rows: Sequence[Row]) -> Sequence[str]:
        """Begin a run with these rows, which replace pending rows; return the KV names of ended sequences."""
        ended = _taken(self._ended)
        over = {*ended, *(row.kv_name for row in rows)}
        self._rows.extend(row for row in _taken(self._rows) if row.kv_name not in over)
        return ended

    def take(self) -> Changes:
        """Remove and return all pending changes."""
        return Changes(_taken(self._ended), _taken(self._rows))


def _taken(pending: deque[_Item]) -> Sequence[_Item]:
    return [pending.popleft() for _ in range(len(pending))]
