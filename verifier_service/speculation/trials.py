"""Whether drafting pays at one batch size: what is predicted, corrected by short trials of the way that is not in use.

Both ways are measured in the same minutes, so a machine that gets slower or busier changes both alike, and only their
ratio counts.
"""

import math
from dataclasses import replace

from verifier_service.speculation.round_tally import LEAST_SPEEDUP, BatchRound, RoundTally

_DRAFTED_ROUNDS, _PLAIN_ROUNDS = 8, 4
"""Rounds of a trial of drafting, whose tokens vary more, and of one of plain decoding."""
_LEAST_ROUNDS = 3
"""Rounds behind which a trial of drafting may end before all of them."""
_SURE, _ROUND_ERROR = 3.0, 0.1
"""Standard errors by which a trial is surely lost, and the least error of one round: few rounds may differ little by
chance."""
_FIRST_PAUSE, _LAST_PAUSE = 32, 192
"""Rounds between trials of plain decoding: the second is twice the first, and so on up to the last."""
_EXPLORED = 0.01
"""Share of what is committed that trials of drafting may cost, with what their lost time was worth."""
_SETTLING = 8
"""Rounds that may not be what they are to be before they count all the same."""
_CATCHING_UP = 256
"""The same where drafters still read the sessions, so that no pass waits for them."""
_BEGIN, _END = 1.05, 1.02
"""Speed-up above which drafting begins, and below which it ends. Less is not worth the drafter's work, which a verifier
does not pay for: drafts that are thrown away, and prompts that are read twice."""
_SURELY = 1.15
"""Speed-up above which it begins although trials have shown less: predictions err by some percent."""
_KEEP_ROUND, _KEEP_TRIAL = 0.95, 0.93
"""Factors by which each round, and each trial, lowers the weight of those before."""
_PRIOR = 0.5
"""Weight, in trials without noise, of the belief that a prediction is right."""
_UNSURE = 0.1
"""Standard error of a trial's gain, as a share of it, at which the trial counts half. Eight rounds of one sampled
session err by about 0.3, and would overrule a prediction that rests on hundreds of rounds."""
_RETRIES = 4
"""Trials of drafting before they have been earned, at a batch size: only where drafts may pay for all that is known."""
_FIRST_RETRY = 24
"""Plain rounds before the first of them; the second waits for four times as many, and so on."""
_PLAUSIBLE = 2.0
"""Standard deviations by which a prediction may be too low where drafts may pay for all that is known."""
_FURTHEST = math.log(5.0)
"""Most by which one trial may contradict the prediction."""


class Trials:
    """Chooses between drafting and plain decoding, a round at a time, and learns from what the rounds brought."""

    def __init__(self, *, eager: bool = False) -> None:
        """Begin with nothing measured.

        Args:
            eager: whether drafting may begin at once. Rounds for which the drafter still reads are plain ones.
        """
        self._eager = eager
        self._drafting = False
        """The way in use; a trial takes the other."""
        self._use = RoundTally(_KEEP_ROUND)
        self._trial: RoundTally | None = None
        self._guessed = RoundTally(_KEEP_ROUND)
        """Rounds without drafters, from the first one with guesses on, which make them faster than plain ones."""
        self._settling = 0
        """Rounds that may pass until the way just taken shows."""
        self._catching_up = 0
        """Such rounds in which the drafters may catch up with the sessions."""
        self._pause, self._since = _FIRST_PAUSE, 0
        self._credit = 0.0
        """Worth that trials of drafting may cost now."""
        self._retries = 0
        """Trials of drafting since drafting ended or the service began."""
        self._weight = self._errors = self._gains = 0.0
        self._prior = _PRIOR
        """Weight of the belief that predictions are right."""

    @property
    def correction(self) -> float:
        """Measured over predicted speed-up, near 1 until trials have shown otherwise."""
        return math.exp(self._errors / (self._weight + self._prior))

    @property
    def measured(self) -> float | None:
        """Speed-up of drafting over plain decoding as measured; None before the first trial."""
        return math.exp(self._gains / self._weight) if self._weight else None

    @property
    def exploring(self) -> bool:
        """Whether a trial of drafting runs."""
        return self._trial is not None and not self._drafting

    @property
    def running(self) -> bool:
        """Whether a trial runs, of drafting or of plain decoding."""
        return self._trial is not None

    @property
    def settling(self) -> bool:
        """Whether the way in use has not shown yet."""
        return self._settling > 0

    def drafts(self, predicted: float) -> bool:
        """Whether the next round is to draft, when that is predicted to be so much faster than plain rounds."""
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
        """Learn from a round."""
        if self._trial is not None and not self._drafting:
            self._charge(done)
        if done.catching_up and self._catching_up:
            self._catching_up -= 1
            return
        if not done.settled and self._settling:
            self._settling -= 1
            return
        self._settling = self._catching_up = 0
        if done.drafted is (self._drafting is (self._trial is None)):
            self._count(replace(done, predicted=self._gain(done.predicted)))

    def expected(self, predicted: float) -> float:
        """The speed-up over rounds without drafters that is expected where so much is predicted over plain ones."""
        return self._gain(predicted) * self.correction

    def _gain(self, predicted: float) -> float:
        return predicted / max(self._guessed.rate, 1.0)

    def _pays(self, predicted: float) -> bool:
        """Whether drafts pay as predicted and corrected; to begin with them, trials should not have shown less."""
        expected = self.expected(predicted)
        if self._drafting:
            return expected > _END
        own = self._prior * math.log(max(self._gain(predicted), LEAST_SPEEDUP))
        shown = math.exp((self._gains + own) / (self._weight + self._prior))
        return expected > (_BEGIN if shown > _BEGIN else _SURELY)

    @property
    def _begun(self) -> bool:
        """Whether drafting may begin: after plain rounds, because what drafts cost cannot be told without them."""
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
        """Whether a trial of drafting surely shows a loss, or has cost as many plain rounds as it may have rounds."""
        if self._drafting or trial.rounds < _LEAST_ROUNDS:
            return False
        lost = trial.seconds * self._use.rate - trial.worth
        if lost * self._use.rounds > _DRAFTED_ROUNDS * self._use.worth:
            return True
        error = math.sqrt(max(trial.variance, _ROUND_ERROR**2 / trial.rounds) + self._use.variance)
        return trial.rate < _BEGIN * self._use.rate * math.exp(-_SURE * error)

    def _conclude(self, trial: RoundTally) -> None:
        """Compare the trial with the rounds before it."""
        drafted, plain = (self._use, trial) if self._drafting else (trial, self._use)
        self._trial, self._since = None, 0
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._settle(self._drafting)
        if not (drafted.rate and plain.rate):
            return
        gain = math.log(drafted.rate / plain.rate)
        weight = _UNSURE**2 / (_UNSURE**2 + drafted.variance + plain.variance)
        error = min(max(gain - drafted.predicted / drafted.rounds, -_FURTHEST), _FURTHEST)
        if self._drafting:  # the prediction rests on many rounds: what more than chance contradicts is not believed
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
        """Whether drafts may pay for all that is known."""
        deviation = _UNSURE / math.sqrt(self._weight + _PRIOR)
        return self.expected(predicted) * math.exp(_PLAUSIBLE * deviation) > _BEGIN

    def _charge(self, done: BatchRound) -> None:
        """Pay for a round of a trial: for what its lost time was worth, and its own worth unless drafters read."""
        lost = done.seconds * self._use.rate - done.worth
        self._credit -= max(lost, 0.0) + (0 if done.catching_up else done.worth)

    def _settle(self, drafting: bool) -> None:
        self._settling = _SETTLING
        self._catching_up = _CATCHING_UP if drafting else 0
