"""Rounds of a batch, and sums over them."""

import math
from dataclasses import dataclass

LEAST_SPEEDUP = 0.01
"""Lower bound of a predicted speed-up. The prediction for useless drafts can be 0."""


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
    catching_up: bool = False
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
