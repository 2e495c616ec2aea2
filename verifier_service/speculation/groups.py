"""Ping-pong scheduling: one group of drafting sessions, or two groups that are drafted and verified alternately.

With one group, the target idles while drafts are made, and the drafter idles while they are verified. With two, the
drafter serves one group while the target verifies the other. That takes two passes instead of one. It pays if drafting
is slow and a pass over half of the sessions is clearly shorter than a pass over all. So the pass must be bound by
compute, not by reading the weights. Short trials of the alternative measure which setting is faster for the current
batch.
"""

import math
from dataclasses import dataclass
from typing import Literal

from verifier_service.speculation.costs import PassSample

_LEAST_SESSIONS = 4
"""Fewest sessions in a batch for two groups."""
_SETTLING = 2
"""Passes after a change that are not counted."""
_TRIAL = 6
"""Counted passes of a trial of one group. A trial of two groups has twice as many, each with half of the verdicts."""
_FIRST_PAUSE, _LAST_PAUSE = 16, 1024
"""First and longest pause between trials, in passes. The pause doubles after each trial."""
_AFTER_A_CHANGE = 256
"""Passes between a change of the number of groups and the next trial."""
_KEEP = 0.95
"""Decay of earlier passes with each new one."""
_KEEP_TRIAL = 0.7
"""Decay of earlier trials with each new one. One trial of a few passes errs by several percent."""
_PROMISING = 1.1
"""Least upper bound of the gain for a trial of two groups."""
_BEGIN, _END = 1.05, 1.02
"""Gain above which two groups begin, and below which they end."""


@dataclass(slots=True)
class _Tally:
    """Decayed sums over passes with one number of groups."""

    tokens: float = 0.0
    """Committed tokens. Verdicts are no measure: with two groups, drafts may be longer and verdicts fewer."""
    computing: float = 0.0
    """Seconds of the passes."""
    waiting: float = 0.0
    """Seconds between the passes."""

    def add(self, tokens: int, seconds: float, gap: float) -> None:
        self.tokens = self.tokens * _KEEP + tokens
        self.computing = self.computing * _KEEP + seconds
        self.waiting = self.waiting * _KEEP + gap

    @property
    def rate(self) -> float:
        """Committed tokens a second."""
        return self.tokens / (self.computing + self.waiting)


class Groups:
    """Number of groups for batches of about one size."""

    def __init__(self, setting: int | Literal["auto"]) -> None:
        """Begin with the number of the setting, or with one group if it is `auto`."""
        self._auto = setting == "auto"
        self._used = 1 if setting == "auto" else setting
        """Number of groups in use. A trial uses the other number."""
        self._use = _Tally()
        self._trial: _Tally | None = None
        self._settling = 0
        self._since, self._pause = 0, _FIRST_PAUSE
        self._weight = self._gains = 0.0
        """Weight of the trials, and weighted sum of the logarithms of their gains."""

    @property
    def gain(self) -> float | None:
        """Measured ratio of tokens a second with two groups to one; None before the first trial."""
        return math.exp(self._gains / self._weight) if self._weight else None

    @property
    def count(self) -> int:
        """Number of groups for the next pass."""
        return self._used if self._trial is None else 3 - self._used

    def among(self, sessions: int, plain: int) -> int:
        """Return the number of groups for a batch in which `plain` of the sessions do not draft; 1 if few draft."""
        return 1 if sessions < _LEAST_SESSIONS or 2 * plain >= sessions else self.count

    def observe(self, sample: PassSample, seconds: float, gap: float) -> None:
        """Record a pass that began `gap` seconds after the previous one and took `seconds` without its prompts."""
        plain = sample.rows - sample.drafting
        if not self._auto or sample.groups != self.count or sample.groups * sample.drafting <= plain:
            return
        if self._settling:
            self._settling -= 1
        elif self._trial is None:
            self._use.add(sample.committed, seconds, gap)
            self._since += 1
            if self._since >= self._pause and (self._used == 2 or self._bound > _PROMISING):
                self._begin(_Tally())
        else:
            self._trial.add(sample.committed, seconds, gap)
            self._since += 1
            if self._since >= _TRIAL * self.count:
                self._conclude(self._trial)

    @property
    def _bound(self) -> float:
        """Upper bound of the gain of two groups over one, assuming that half of the batch takes half of the pass."""
        seconds, gap = self._use.computing, self._use.waiting
        return (seconds + gap) / max(seconds, seconds / 2 + gap)

    def _begin(self, trial: _Tally | None) -> None:
        self._trial, self._since, self._settling = trial, 0, _SETTLING

    def _conclude(self, trial: _Tally) -> None:
        """Compare the trial with the passes before it, and use the better number of groups."""
        two, one = (trial, self._use) if self._used == 1 else (self._use, trial)
        if not (two.rate and one.rate):  # for example because the model fails
            self._begin(None)
            return
        self._weight = self._weight * _KEEP_TRIAL + 1.0
        self._gains = self._gains * _KEEP_TRIAL + math.log(two.rate / one.rate)
        gain = math.exp(self._gains / self._weight)
        better = 2 if gain > (_BEGIN if self._used == 1 else _END) else 1
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        if better != self._used:
            self._used, self._use, self._pause = better, _Tally(), _AFTER_A_CHANGE
        self._begin(None)
