"""What is reported of a committed token's probability; see `specdec.rules.scoring` for how it comes about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, float32 in value."""

    logprob: float
    """Of the committed token."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely ids and their log probabilities, most likely first; the committed token may be among them."""

    def cut(self, count: int) -> "TokenLogprobs":
        """With the first `count` of the most likely ids."""
        return TokenLogprobs(self.logprob, self.top[:count])
