"""Choice between drafting and plain decoding at one batch size: a prediction, corrected by short trials.

A trial uses the alternative for a few rounds. Both are measured close in time, so a machine that slows down affects
both alike, and only their ratio counts.
"""

import math
from dataclasses import dataclass, replace

LEAST_SPEEDUP = 0.01
"""Lower bound of a predicted speed-up. The prediction for useless drafts can be 0."""
_DRAFTED_ROUNDS, _PLAIN_ROUNDS = 8, 4
"""Rounds of a trial of drafting and of plain decoding. Token counts of drafted rounds vary more."""
_LEAST_ROUNDS = 3
"""Rounds after which a trial of drafting may end early."""
_SURE, _ROUND_ERROR = 3.0, 0.1
"""Standard errors by which a trial must lose to end early, and least assumed error of one round. A few rounds may
agree by chance."""
_FIRST_PAUSE, _LAST_PAUSE = 32, 192
"""First and longest pause between trials of plain decoding, in rounds. The pause doubles after each trial."""
_EXPLORED = 0.01
"""Budget of trials of drafting, as a share of the worth of plain rounds. It pays for their rounds and lost time."""
_SETTLING = 8
"""Most unsettled rounds to ignore after a change. Later rounds count in any case."""
_PREFILLING = 256
"""Most rounds to ignore after a change while drafters still read the sessions."""
_BEGIN, _END = 1.05, 1.02
"""Speed-up above which drafting begins, and below which it ends. A smaller gain does not justify the drafter's work,
which the speed-up does not include."""
_SURELY = 1.15
"""Predicted speed-up above which drafting begins although trials measured less than the threshold."""
_KEEP_ROUND, _KEEP_TRIAL = 0.95, 0.93
"""Decay of earlier rounds with each round, and of earlier trials with each trial."""
_PRIOR = 0.5
"""Weight of the prior that the prediction is right, in noise-free trials."""
_UNSURE = 0.1
"""Relative standard error of a trial's gain at which the trial counts half. Otherwise a few noisy rounds would
overrule a prediction from hundreds of rounds."""
_RETRIES = 4
"""Most trials of drafting beyond the budget, at a batch size. They run only while the data allow that drafts pay."""
_FIRST_RETRY = 24
"""Plain rounds before the first such trial. The number quadruples for each further trial."""
_PLAUSIBLE = 2.0
"""Standard deviations added to the expected speed-up to decide whether drafts may still pay."""
_FURTHEST = math.log(5.0)
"""Largest logarithmic deviation of one trial from the prediction."""


@dataclass(frozen=True, slots=True)
class BatchRound:
    """One pass over a batch, including the time since the previous pass."""

    worth: float
    """Estimated seconds of plain decoding for the tokens that the round committed."""
    seconds: float
    drafted: bool
    """Whether drafting was chosen for the batch."""
    settled: bool
    """Whether the round ran as chosen: a plain pass ran ahead, or a drafted pass had the drafts of most sessions."""
    predicted: float
    """Predicted speed-up by drafting, without correction."""
    prefilling: bool = False
    """Whether drafting was chosen while drafters were still reading most sessions."""
    guessed: bool = False
    """Whether sources in this process made drafts for the round."""


@dataclass(slots=True)
class RoundTally:
    """Decayed sums over drafted rounds or over plain rounds."""

    keep: float = 1.0
    rounds: float = 0.0
    worth: float = 0.0
    seconds: float = 0.0
    predicted: float = 0.0
    """Sum of the logarithms of the predicted speed-ups."""
    worth_squared: float = 0.0
    seconds_squared: float = 0.0
    product: float = 0.0
    """Sum of worth times seconds, with squared weights like the sums of squares."""

    def add(self, done: BatchRound) -> None:
        keep = self.keep * self.keep
        self.worth_squared = self.worth_squared * keep + done.worth * done.worth
        self.seconds_squared = self.seconds_squared * keep + done.seconds * done.seconds
        self.product = self.product * keep + done.worth * done.seconds
        self.rounds = self.rounds * self.keep + 1.0
        self.worth = self.worth * self.keep + done.worth
        self.seconds = self.seconds * self.keep + done.seconds
        self.predicted = self.predicted * self.keep + math.log(max(done.predicted, LEAST_SPEEDUP))

    @property
    def rate(self) -> float:
        """Worth a second; near 1 for plain rounds."""
        return self.worth / self.seconds if self.seconds else 0.0

    @property
    def variance(self) -> float:
        """Squared relative standard error of the rate, from the spread of the rounds."""
        rate = self.rate
        spread = self.worth_squared - 2.0 * rate * self.product + rate * rate * self.seconds_squared
        return max(spread, 0.0) / (self.worth * self.worth)


class Trials:
    """Chooses between drafting and plain decoding for each round, from measured rounds."""

    def __init__(self, *, eager: bool = False) -> None:
        """Create trials without measurements.

        Args:
            eager: whether drafting may begin at once, without plain rounds before.
        """
        self._eager = eager
        self._drafting = False
        """Whether drafting is in use. A trial does the opposite."""
        self._use = RoundTally(_KEEP_ROUND)
        self._trial: RoundTally | None = None
        self._guessed = RoundTally(_KEEP_ROUND)
        """Rounds without drafters since the first round with guesses. Guesses make them faster than plain rounds."""
        self._settling = 0
        """Unsettled rounds still to ignore after the last change."""
        self._prefilling = 0
        """Rounds still to ignore while drafters read the sessions."""
        self._pause, self._since = _FIRST_PAUSE, 0
        self._credit = 0.0
        """Budget of trials of drafting, in seconds of plain decoding."""
        self._retries = 0
        """Number of trials since the last change between drafting and plain decoding."""
        self._weight = self._errors = self._gains = 0.0
        self._prior = _PRIOR
        """Weight of the prior that predictions are right."""

    @property
    def correction(self) -> float:
        """Ratio of measured to predicted speed-up; 1 before the first trial."""
        return math.exp(self._errors / (self._weight + self._prior))

    @property
    def measured(self) -> float | None:
        """Measured speed-up of drafting over plain decoding; None before the first trial."""
        return math.exp(self._gains / self._weight) if self._weight else None

    @property
    def in_use(self) -> bool:
        """Whether drafting is in use. A trial of plain decoding does not change that."""
        return self._drafting

    @property
    def exploring(self) -> bool:
        """Whether a trial of drafting is running."""
        return self._trial is not None and not self._drafting

    @property
    def running(self) -> bool:
        """Whether a trial of drafting or plain decoding is running."""
        return self._trial is not None

    @property
    def settling(self) -> bool:
        """Whether rounds after the last change are still unsettled."""
        return self._settling > 0

    def drafts(self, predicted: float) -> bool:
        """Whether the next round drafts, given the predicted speed-up over plain rounds."""
        if self._trial is None:
            drafting = self._begun and self._pays(predicted)
            if drafting != self._drafting:
                self._drafting, self._use, self._since, self._pause = drafting, RoundTally(_KEEP_ROUND), 0, _FIRST_PAUSE
                self._retries = 0
                self._settle(drafting)
            elif self._due(predicted):
                self._trial = RoundTally()
                self._retries += 1
                self._settle(not drafting)
        return self._drafting is (self._trial is None)

    def observe(self, done: BatchRound) -> None:
        """Record a round."""
        if self._trial is not None and not self._drafting:
            self._charge(done)
        if done.prefilling and self._prefilling:
            self._prefilling -= 1
            return
        if not done.settled and self._settling:
            self._settling -= 1
            return
        self._settling = self._prefilling = 0
        if done.drafted is (self._drafting is (self._trial is None)):
            self._count(replace(done, predicted=self._gain(done.predicted)))

    def expected(self, predicted: float) -> float:
        """Return the corrected speed-up over rounds without drafters, given the prediction over plain rounds."""
        return self._gain(predicted) * self.correction

    def _gain(self, predicted: float) -> float:
        return predicted / max(self._guessed.rate, 1.0)

    def _pays(self, predicted: float) -> bool:
        """Whether drafts pay after correction. To begin, the trials must agree or the gain must be large."""
        expected = self.expected(predicted)
        if self._drafting:
            return expected > _END
        own = self._prior * math.log(max(self._gain(predicted), LEAST_SPEEDUP))
        shown = math.exp((self._gains + own) / (self._weight + self._prior))
        return expected > (_BEGIN if shown > _BEGIN else _SURELY)

    @property
    def _begun(self) -> bool:
        """Whether drafting may begin. It needs plain rounds first, to measure the cost of drafts against them."""
        return self._eager or self._drafting or self._since >= _PLAIN_ROUNDS or self._weight > 0.0

    def _count(self, done: BatchRound) -> None:
        if not done.drafted and (done.guessed or self._guessed.rounds):
            self._guessed.add(done)
        if self._trial is None:
            self._use.add(done)
            self._since += 1
            if not self._drafting:
                self._credit += _EXPLORED * done.worth
            return
        self._trial.add(done)
        if self._trial.rounds >= (_PLAIN_ROUNDS if self._drafting else _DRAFTED_ROUNDS) or self._is_lost(self._trial):
            self._conclude(self._trial)

    def _is_lost(self, trial: RoundTally) -> bool:
        """Whether a trial of drafting is a clear loss, or has lost as much as `_DRAFTED_ROUNDS` plain rounds bring."""
        if self._drafting or trial.rounds < _LEAST_ROUNDS:
            return False
        lost = trial.seconds * self._use.rate - trial.worth
        if lost * self._use.rounds > _DRAFTED_ROUNDS * self._use.worth:
            return True
        error = math.sqrt(max(trial.variance, _ROUND_ERROR**2 / trial.rounds) + self._use.variance)
        return trial.rate < _BEGIN * self._use.rate * math.exp(-_SURE * error)

    def _conclude(self, trial: RoundTally) -> None:
        """Compare the trial with the rounds before it, and update the correction."""
        drafted, plain = (self._use, trial) if self._drafting else (trial, self._use)
        self._trial, self._since = None, 0
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._settle(self._drafting)
        if not (drafted.rate and plain.rate):
            return
        gain = math.log(drafted.rate / plain.rate)
        weight = _UNSURE**2 / (_UNSURE**2 + drafted.variance + plain.variance)
        error = min(max(gain - drafted.predicted / drafted.rounds, -_FURTHEST), _FURTHEST)
        if self._drafting:  # many drafted rounds contradict the prediction: trust it less
            self._prior = _PRIOR / max(error * error / (_UNSURE**2 * (1.0 + 1.0 / weight)), 1.0)
        self._weight = self._weight * _KEEP_TRIAL + weight
        self._errors = self._errors * _KEEP_TRIAL + weight * error
        self._gains = self._gains * _KEEP_TRIAL + weight * gain

    def _due(self, predicted: float) -> bool:
        if self._drafting:
            return self._since >= self._pause
        earned = self._credit >= 0.0 and self._since >= _PLAIN_ROUNDS
        return earned or (
            self._retries < _RETRIES and self._since >= _FIRST_RETRY * 4**self._retries and self._plausible(predicted)
        )

    def _plausible(self, predicted: float) -> bool:
        """Whether the data allow that drafts pay."""
        deviation = _UNSURE / math.sqrt(self._weight + _PRIOR)
        return self.expected(predicted) * math.exp(_PLAUSIBLE * deviation) > _BEGIN

    def _charge(self, done: BatchRound) -> None:
        """Charge a trial's round to the budget: its lost time, and its worth unless drafters were still reading."""
        lost = done.seconds * self._use.rate - done.worth
        self._credit -= max(lost, 0.0) + (0 if done.prefilling else done.worth)

    def _settle(self, drafting: bool) -> None:
        self._settling = _SETTLING
        self._prefilling = _PREFILLING if drafting else 0
