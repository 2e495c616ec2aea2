"""A unigram or bigram model in the place of an engine: logits are log-probabilities that come from counts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drafter_service.drafters.counts import Counts
from specdec.engine import Chunk
from specdec.errors import InternalError

_BACK_OFF = 1.0
"""Weight of the unigram distribution in a bigram row, in counts (Dirichlet smoothing)."""
_CONTEXT = 2**31 - 1


class NgramModel:
    """What a ModelDrafter needs of a model; of a session it keeps nothing but a length."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._unigram = (counts.single + 1.0) / (counts.single + 1.0).sum()
        self._lengths: dict[str, int] = {}
        self.vocab_size = len(counts.single)
        self.context_length = _CONTEXT
        self.tokenizer_hash = counts.tokenizer_hash

    def admit(self, session: str, capacity: int) -> bool:
        """There is always room."""
        if session in self._lengths:
            raise InternalError(f"session {session} is admitted already")
        self._lengths[session] = 0
        return True

    def release(self, session: str) -> None:
        """Forget the session."""
        del self._lengths[session]

    def length(self, session: str) -> int:
        """Tokens it was told of."""
        return self._lengths[session]

    def truncate(self, session: str, length: int) -> None:
        """Count the first `length` tokens only."""
        self._lengths[session] = length

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Log-probabilities after each chunk's last `logits` tokens, float32 [Σ logits, V]."""
        rows: list[Tensor] = []
        for chunk in chunks:
            self._lengths[chunk.session] += len(chunk.tokens)
            rows += [self._after(token) for token in chunk.tokens[len(chunk.tokens) - chunk.logits :]]
        return torch.stack(rows).log() if rows else torch.empty(0, self.vocab_size)

    def _after(self, token: int) -> Tensor:
        if self._counts.order == 1:
            return self._unigram
        start, end = self._counts.starts[token : token + 2].tolist()
        mass = _BACK_OFF * self._unigram
        mass[self._counts.seconds[start:end]] += self._counts.pairs[start:end]
        return mass / mass.sum()
