"""The log probabilities that are reported with a committed token; `specdec.sampling.scoring` computes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, with the precision of float32."""

    logprob: float
    """Log probability of the committed token."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely ids and their log probabilities, most likely first; the committed token may be among them."""

    def cut(self, count: int) -> "TokenLogprobs":
        """The same with only the first `count` of the most likely ids."""
        return TokenLogprobs(self.logprob, self.top[:count])
