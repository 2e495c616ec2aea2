"""Ping-pong: whether the sessions that draft are in one group, or in two that are drafted for and verified in turns.

With one group the target stands still while drafts are made, and the drafter while they are judged. With two, one is
drafted for while the other is judged. That takes two passes in place of one, so it pays where drafts take long and a
pass over half of the sessions takes clearly less time than one over all of them: where it is bound by computing, and
not by reading the weights. Short trials of the other way find out which holds, on the batch as it is.
"""

import math
from dataclasses import dataclass
from typing import Literal

from verifier_service.speculation.pass_sample import PassSample

_LEAST_SESSIONS = 4
"""Sessions in a batch below which there is one group."""
_SETTLING = 2
"""Passes until the way just taken shows."""
_TRIAL = 6
"""Passes of a trial of one group behind those; one of two groups has twice as many, each with half of the verdicts."""
_FIRST_PAUSE, _LAST_PAUSE = 16, 1024
"""Passes between trials: the second pause is twice the first, and so on up to the last."""
_AFTER_A_CHANGE = 256
"""Passes between a change of the way and the next trial."""
_KEEP = 0.95
"""Factor by which each pass lowers the weight of those before."""
_KEEP_TRIAL = 0.7
"""Factor by which each trial lowers the weight of those before: a few passes err by some percent."""
_PROMISING = 1.1
"""Least gain, if half of a batch took half of its pass, for which two groups are tried."""
_BEGIN, _END = 1.05, 1.02
"""Gain above which there come to be two groups, and below which they become one."""


@dataclass(slots=True)
class _Tally:
    """Sums over passes of one way, older passes weighted less."""

    tokens: float = 0.0
    """Those committed. Verdicts would not do: with two groups drafts may be longer, and verdicts fewer."""
    computing: float = 0.0
    """Seconds of the passes."""
    waiting: float = 0.0
    """Seconds between them."""

    def add(self, tokens: int, seconds: float, gap: float) -> None:
        self.tokens = self.tokens * _KEEP + tokens
        self.computing = self.computing * _KEEP + seconds
        self.waiting = self.waiting * _KEEP + gap

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / (self.computing + self.waiting)


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
        self._weight = self._gains = 0.0
        """Of the trials, and the sum of the logarithms of what they found."""

    @property
    def gain(self) -> float | None:
        """Tokens a second of two groups over those of one, as measured; None before that."""
        return math.exp(self._gains / self._weight) if self._weight else None

    @property
    def count(self) -> int:
        """The number of groups that the next pass is one of."""
        return self._used if self._trial is None else 3 - self._used

    def among(self, sessions: int, plain: int) -> int:
        """The same for a batch of so many sessions, some of which draft nothing; one if few draft."""
        return 1 if sessions < _LEAST_SESSIONS or 2 * plain >= sessions else self.count

    def observe(self, sample: PassSample, seconds: float, gap: float) -> None:
        """Learn from a pass that followed the one before by `gap` and took `seconds` without its prompts."""
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
        """What two groups gain at most over the one in use."""
        seconds, gap = self._use.computing, self._use.waiting
        return (seconds + gap) / max(seconds, seconds / 2 + gap)

    def _begin(self, trial: _Tally | None) -> None:
        self._trial, self._since, self._settling = trial, 0, _SETTLING

    def _conclude(self, trial: _Tally) -> None:
        """Compare the trial with the passes before it, and go on with the better way."""
        two, one = (trial, self._use) if self._used == 1 else (self._use, trial)
        if not (two.rate and one.rate):  # as where the model fails
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
