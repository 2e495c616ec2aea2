"""A unigram or bigram model as an Engine: its logits are log-probabilities that come from counts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drafter_service.drafters.counts import Counts
from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from specdec.engine import Chunk

_BACK_OFF = 1.0
"""Weight of the unigram distribution in a bigram row, in counts (Dirichlet smoothing)."""


class NgramModel(SequenceLengths):
    """An Engine that keeps nothing of a sequence but its length."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts
        self._unigram = (counts.single + 1.0) / (counts.single + 1.0).sum()
        self.vocab_size = len(counts.single)
        self.context_length = UNBOUNDED
        self.tokenizer_hash = counts.tokenizer_hash

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Log-probabilities after each of the last `logits` tokens of each chunk, float32 [Σ logits, V]."""
        rows: list[Tensor] = []
        for chunk in chunks:
            self.extend(chunk.session, len(chunk.tokens))
            rows += [self._after(token) for token in chunk.tokens[len(chunk.tokens) - chunk.logits :]]
        return torch.stack(rows).log() if rows else torch.empty(0, self.vocab_size)

    def _after(self, token: int) -> Tensor:
        if self._counts.order == 1:
            return self._unigram
        start, end = self._counts.starts[token : token + 2].tolist()
        mass = _BACK_OFF * self._unigram
        mass[self._counts.seconds[start:end]] += self._counts.pairs[start:end]
        return mass / mass.sum()
