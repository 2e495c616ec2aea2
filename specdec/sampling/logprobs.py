"""Log probabilities that are reported with a token; `specdec.sampling.scoring` computes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, with the precision of float32."""

    logprob: float
    """Log probability of the token."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely ids and their log probabilities, most likely first; the token may be among them."""
    rank: int = 0
    """Rank of the token in the vocabulary, from 1; 0 if unknown."""

    def cut(self, count: int) -> "TokenLogprobs":
        """A copy with only the first `count` of the most likely ids."""
        return TokenLogprobs(self.logprob, self.top[:count], self.rank)
