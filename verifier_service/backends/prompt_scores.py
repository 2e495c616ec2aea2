"""Log probabilities of a prompt's tokens, which passes compute piece by piece."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.scoring import score
from specdec.wire.generation import GenerationCall

PIECE = 128
"""Most tokens of a prompt that one pass scores: each takes a row of logits as wide as the vocabulary."""


class PromptScores:
    """The log probabilities of one prompt so far. A piece that is computed again, after KV was lost, has them again."""

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        """Score the tokens of a prompt but the first, each beside the `top` most likely ones."""
        self._prompt = prompt
        self._top = top
        self._found: dict[int, TokenLogprobs] = {}

    @classmethod
    def of_call(cls, call: GenerationCall) -> "PromptScores | None":
        """Those that a call asks for; None where it asks for none, or goes on behind the round that had them."""
        if call.prompt_logprobs is None or len(call.tokens) > call.prompt_len:
            return None
        return cls(call.tokens, call.prompt_logprobs)

    def scored(self, start: int, count: int) -> int:
        """How many of `count` tokens of the prompt, from `start` on, are followed by another one of it."""
        return max(0, min(start + count, len(self._prompt) - 1) - start)

    def add(self, start: int, logits: Tensor) -> None:
        """Score the tokens behind consecutive ones; `logits` [n, V] are those after the tokens from `start` on.

        Raises:
            NoDistribution: a row is NaN or infinite.
        """
        tokens = self._prompt[start + 1 : start + 1 + len(logits)]
        self.fill(start, score(logits, tokens, self._top, ranked=True))

    def fill(self, start: int, found: Iterable[TokenLogprobs]) -> None:
        """Take the log probabilities of the tokens behind those from `start` on."""
        self._found |= enumerate(found, start + 1)

    @property
    def all(self) -> tuple[TokenLogprobs, ...]:
        """Of the prompt's tokens but the first; raises KeyError where a piece has not been computed."""
        return tuple(self._found[index] for index in range(1, len(self._prompt)))
