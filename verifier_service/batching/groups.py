"""Ping-pong: whether the sessions that draft are in one group, or in two that are drafted for and verified in turns.

With one group the target stands still while drafts are made, and the drafter while they are judged. With two, one is
drafted for while the other is judged. That takes two passes in place of one, so it pays where drafts take long and a
pass over half of the sessions takes clearly less time than one over all of them: where it is bound by computing, and
not by reading the weights. Short trials of the other way find out which holds, on the batch as it is.
"""

from dataclasses import dataclass
from typing import Literal

LEAST_SESSIONS = 4
"""Sessions in a batch below which there is one group."""
_SETTLING = 3
"""Passes until the way just taken shows."""
_TRIAL = 6
"""Passes of a trial behind those."""
_FIRST_PAUSE, _LAST_PAUSE = 32, 1024
"""Passes between trials: the second pause is twice the first, and so on up to the last."""
_AFTER_A_CHANGE = 128
"""Passes between a change of the way and the next trial."""
_KEEP = 0.95
"""Factor by which each pass lowers the weight of those before."""
_PROMISING = 1.1
"""Least gain, if half of a batch took half of its pass, for which two groups are tried."""
_BEGIN, _END = 1.05, 1.02
"""Gain above which there come to be two groups, and below which they become one."""


@dataclass(slots=True)
class _Tally:
    """Sums over passes of one way, older passes weighted less."""

    rows: float = 0.0
    computing: float = 0.0
    """Seconds of the passes."""
    waiting: float = 0.0
    """Seconds between them."""

    def add(self, rows: int, seconds: float, gap: float) -> None:
        self.rows = self.rows * _KEEP + rows
        self.computing = self.computing * _KEEP + seconds
        self.waiting = self.waiting * _KEEP + gap

    @property
    def rate(self) -> float:
        """Verdicts a second."""
        return self.rows / (self.computing + self.waiting)


class Groups:
    """The number of groups of batches of about one size."""

    def __init__(self, setting: int | Literal["auto"]) -> None:
        """Begin with one group where the setting leaves the choice."""
        self._auto = setting == "auto"
        self._used = 1 if setting == "auto" else setting
        """The number in use; a trial takes the other one."""
        self._use = _Tally()
        self._trial: _Tally | None = None
        self._settling = 0
        self._since, self._pause = 0, _FIRST_PAUSE
        self.gain: float | None = None
        """Verdicts a second of two groups over those of one, as last measured; None before that."""

    @property
    def count(self) -> int:
        """The number of groups that the next pass is one of."""
        return self._used if self._trial is None else 3 - self._used

    def observe(self, rows: int, seconds: float, gap: float) -> None:
        """Learn from a pass over `rows` sessions, most of them with drafts, so many seconds behind the one before."""
        if not self._auto:
            return
        if self._settling:
            self._settling -= 1
        elif self._trial is None:
            self._use.add(rows, seconds, gap)
            self._since += 1
            if self._since >= self._pause and (self._used == 2 or self._bound > _PROMISING):
                self._begin(_Tally())
        else:
            self._trial.add(rows, seconds, gap)
            self._since += 1
            if self._since >= _TRIAL:
                self._conclude(self._trial)

    @property
    def _bound(self) -> float:
        """What two groups gain at most over the one in use."""
        seconds, gap = self._use.computing, self._use.waiting
        return (seconds + gap) / max(seconds, seconds / 2 + gap)

    def _begin(self, trial: _Tally | None) -> None:
        self._trial, self._since, self._settling = trial, 0, _SETTLING

    def _conclude(self, trial: _Tally) -> None:
        """Compare the trial with the passes before it, and go on with the better way."""
        two, one = (trial, self._use) if self._used == 1 else (self._use, trial)
        self.gain = two.rate / one.rate
        better = 2 if self.gain > (_BEGIN if self._used == 1 else _END) else 1
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        if better != self._used:
            self._used, self._use, self._pause = better, _Tally(), _AFTER_A_CHANGE
        self._begin(None)
