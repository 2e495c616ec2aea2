"""Training windows over one long row of token ids; which windows a step sees is a pure function of (seed, step)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.train.corpus import Document


def encode(documents: Iterable[Document], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All documents as one int64 row, each preceded by the end-of-text token (which also opens a prompt)."""
    separator: int = tokenizer.eos_token_id
    ids: list[int] = []
    for document in documents:
        ids.append(separator)
        ids.extend(tokenizer.backend_tokenizer.encode(document.text, add_special_tokens=False).ids)
    return torch.tensor(ids, dtype=torch.int64)


@dataclass(frozen=True)
class Windows:
    """Windows of `length` + 1 tokens (inputs and, shifted by one, their labels) drawn in shuffled epochs.

    An epoch covers the row once: the row is cut at an epoch-specific phase, so that window borders move, and the
    cuts are visited in an epoch-specific order. Nothing is remembered between calls.
    """

    tokens: Tensor
    length: int
    seed: int

    def __post_init__(self) -> None:
        if self.per_epoch < 1:
            raise ValueError(f"{len(self.tokens)} tokens are too few for windows of {self.length}")

    @property
    def per_epoch(self) -> int:
        """Windows in one epoch; one window's worth of tokens is the room the phase moves in."""
        return (len(self.tokens) - 1) // self.length - 1

    def batch(self, step: int, rows: int) -> Tensor:
        """The int64 [rows, length + 1] batch of a step (steps count from 0)."""
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
