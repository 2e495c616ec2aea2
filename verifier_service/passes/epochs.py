"""Who may generate for a session: the caller with the highest epoch seen, and of equal epochs the latest caller.

Epochs are at least the time in microseconds, by the clock of the session store. One that is far ahead of this process's
clock is served and not believed: it is remembered as little more than the time now, so that it soon keeps nobody out.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from specdec.errors import Fenced

_REMEMBERED = 65_536
"""Number of sessions whose epoch is remembered."""
_MOST_SKEW = 60.0
"""Seconds by which an epoch that is remembered may be ahead of this process's clock."""


class Epochs:
    """The highest epoch of each session."""

    def __init__(self, remembered: int = _REMEMBERED, clock: Callable[[], float] = time.time) -> None:
        """`remembered` is the number of sessions whose epoch is remembered; `clock` gives Unix seconds."""
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered
        self._clock = clock

    def enter(self, session_id: str, epoch: int) -> None:
        """Note the epoch of a caller.

        Raises:
            Fenced: a higher epoch of the session has been seen.
        """
        highest = self._epochs.get(session_id, 0)
        if epoch < highest:
            raise Fenced(f"epoch {epoch} of the session is over, {highest} has it")
        self._epochs[session_id] = max(highest, min(epoch, round((self._clock() + _MOST_SKEW) * 1e6)))
        self._epochs.move_to_end(session_id)
        if len(self._epochs) > self._remembered:
            self._epochs.popitem(last=False)
