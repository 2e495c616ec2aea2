"""Log probabilities of a prompt's tokens, computed piece by piece over several passes."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.scoring import score
from specdec.wire.generation import GenerationCall

PIECE = 128
"""Most prompt tokens scored in one pass. Each takes a row of logits as wide as the vocabulary."""


class PromptScores:
    """Log probabilities of one prompt so far. A piece that is recomputed after preemption overwrites its values."""

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        """Create the scores of a prompt's tokens except the first, each with the `top` most likely alternatives."""
        self._prompt = prompt
        self._top = top
        self._found: dict[int, TokenLogprobs] = {}

    @classmethod
    def of_call(cls, call: GenerationCall) -> "PromptScores | None":
        """Return empty scores for a call, or None if it requests none or resumes after its first round."""
        if call.prompt_logprobs is None or len(call.tokens) > call.prompt_len:
            return None
        return cls(call.tokens, call.prompt_logprobs)

    def scored(self, start: int, count: int) -> int:
        """Return how many of the `count` tokens from `start` on are followed by another prompt token."""
        return max(0, min(start + count, len(self._prompt) - 1) - start)

    def add(self, start: int, logits: Tensor) -> None:
        """Score the tokens that follow the positions from `start` on.

        Args:
            start: position of the token after which the first row of logits predicts.
            logits: logits after consecutive tokens from `start` on, [n, V].

        Raises:
            NoDistribution: a row is NaN or infinite.
        """
        tokens = self._prompt[start + 1 : start + 1 + len(logits)]
        self.fill(start, score(logits, tokens, self._top, ranked=True))

    def fill(self, start: int, found: Iterable[TokenLogprobs]) -> None:
        """Store the log probabilities of the tokens that follow the positions from `start` on."""
        self._found |= enumerate(found, start + 1)

    @property
    def all(self) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of all prompt tokens except the first. Raises KeyError if a piece is missing."""
        return tuple(self._found[index] for index in range(1, len(self._prompt)))
