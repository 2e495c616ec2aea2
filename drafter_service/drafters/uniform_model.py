"""A uniform draft model: the worst drafter, for theory and tests."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from drafter_service.drafters.sequence_lengths import UNBOUNDED, SequenceLengths
from specdec.engine import Chunk
from specdec.sampling import vocabulary


class UniformModel(SequenceLengths):
    """An Engine whose logits are all equal."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Create the model; `ids` is the tokenizer's vocabulary."""
        super().__init__()
        self.vocab_size = max(ids.values()) + 1
        self.context_length = UNBOUNDED
        self.tokenizer_hash = vocabulary.fingerprint(ids)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Return zeros, float32 [Σ logits, V]."""
        for chunk in chunks:
            self.extend(chunk.session, len(chunk.tokens))
        return torch.zeros(sum(chunk.logits for chunk in chunks), self.vocab_size)
