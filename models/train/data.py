"""Training windows over one long row of token ids. The windows of a step are a pure function of (seed, step)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.train.corpus import Document


def encode(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return all documents as one int64 row, each preceded by the end-of-text token, which also opens a prompt."""
    separator: int = tokenizer.eos_token_id
    ids: list[int] = []
    for document in documents:
        ids.append(separator)
        ids.extend(tokenizer.backend_tokenizer.encode(document.text, add_special_tokens=False).ids)
    return torch.tensor(ids, dtype=torch.int64)


@dataclass(frozen=True)
class Windows:
    """Windows of `length` + 1 tokens, for inputs and labels shifted by one, drawn in shuffled epochs.

    An epoch covers the row once. Each epoch cuts the row at its own phase, so window borders move, and visits the
    windows in its own order. Calls keep no state.
    """

    tokens: Tensor
    length: int
    seed: int

    def __post_init__(self) -> None:
        if self.per_epoch < 1:
            raise ValueError(f"{len(self.tokens)} tokens are too few for windows of {self.length}")

    @property
    def per_epoch(self) -> int:
        """Number of windows in one epoch. The length of one window is reserved for the phase."""
        return (len(self.tokens) - 1) // self.length - 1

    def batch(self, step: int, rows: int) -> Tensor:
        """Return the batch of a step, int64 [rows, length + 1]. Steps count from 0."""
        indices = range(step * rows, (step + 1) * rows)
        starts = {epoch: self._starts(epoch) for epoch in {index // self.per_epoch for index in indices}}
        return torch.stack([self._window(starts[i // self.per_epoch][i % self.per_epoch]) for i in indices])

    def _starts(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        phase = int(torch.randint(self.length, (), generator=generator))
        order = torch.randperm(self.per_epoch, generator=generator)
        return (order * self.length + phase).tolist()

    def _window(self, start: int) -> Tensor:
        return self.tokens[start : start + self.length + 1]
