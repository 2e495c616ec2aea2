"""Sequences that come and end while passes follow one another; a pass takes them between two of its kind."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from verifier_service.backends.batch_plan import Row

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since the last pass began."""

    ended: Sequence[str] = ()
    """KV names of the sequences that have ended."""
    rows: Sequence[Row] = ()
    """Rows of sequences that had none."""


class PendingChanges:
    """Changes that no pass has taken yet. One thread adds, and another one begins and takes."""

    def __init__(self) -> None:
        self._ended: deque[str] = deque()
        self._rows: deque[Row] = deque()

    def add(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Note changes for the next pass."""
        self._rows.extend(rows)
        self._ended.extend(ended)

    def begin(self, rows: Sequence[Row]) -> Sequence[str]:
        """Begin with these rows, which take the place of pending ones; the sequences that have ended until now."""
        ended = _taken(self._ended)
        over = {*ended, *(row.kv_name for row in rows)}
        self._rows.extend(row for row in _taken(self._rows) if row.kv_name not in over)
        return ended

    def take(self) -> Changes:
        """All that is pending."""
        return Changes(_taken(self._ended), _taken(self._rows))


def _taken(pending: deque[_Item]) -> Sequence[_Item]:
    return [pending.popleft() for _ in range(len(pending))]
