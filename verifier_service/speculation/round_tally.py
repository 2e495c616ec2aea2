"""Rounds of a batch, and what they have come to."""

import math
from dataclasses import dataclass

LEAST_SPEEDUP = 0.01
"""Least prediction that counts: drafts of no use at all are predicted to bring 0."""


@dataclass(frozen=True, slots=True)
class BatchRound:
    """One pass over a batch, with the time since the pass before."""

    worth: float
    """Seconds that plain decoding is believed to take for the tokens that it committed."""
    seconds: float
    drafted: bool
    """Whether the batch was to draft."""
    settled: bool
    """Whether it did what it was to do: plain passes ran ahead, and others had the drafts of most sessions."""
    predicted: float
    """The speed-up that was predicted of the drafts, uncorrected."""
    catching_up: bool = False
    """Whether it was to draft, and the drafters still read most of its sessions."""
    guessed: bool = False
    """Whether sources of the verifier itself guessed in it."""


@dataclass(slots=True)
class RoundTally:
    """Sums over rounds of one way, older rounds weighted less."""

    keep: float = 1.0
    rounds: float = 0.0
    worth: float = 0.0
    seconds: float = 0.0
    predicted: float = 0.0
    """Sum of the logarithms of what was predicted."""
    worth_squared: float = 0.0
    seconds_squared: float = 0.0
    product: float = 0.0
    """Sum of worth times seconds; like the squares, with squared weights."""

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
        """Worth of a second; near 1 for plain rounds."""
        return self.worth / self.seconds if self.seconds else 0.0

    @property
    def variance(self) -> float:
        """The squared standard error of the rate, as a share of it; what rounds of this way differ by shows it."""
        rate = self.rate
        spread = self.worth_squared - 2.0 * rate * self.product + rate * rate * self.seconds_squared
        return max(spread, 0.0) / (self.worth * self.worth)
