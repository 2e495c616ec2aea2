"""One session's keys and values, contiguous in every head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.sequence_kv import SequenceKv


class Slab(SequenceKv):
    """Positions from `length` on are never read before they are written again."""

    __slots__ = ("keys", "pages", "values")

    def __init__(self, keys: Tensor, values: Tensor, limit: int, root: bytes = b"") -> None:
        super().__init__(limit, root)
        self.keys = keys
        """[layers, 1, heads, at least limit, key_width]"""
        self.values = values
        """[layers, 1, heads, at least limit, value_width]"""
        self.pages = 0
        """Pages it is charged for."""

    def take(self, source: "Slab", count: int) -> None:
        """Copy the keys and values of the first `count` tokens of another session."""
        self.keys[..., :count, :] = source.keys[..., :count, :]
        self.values[..., :count, :] = source.values[..., :count, :]

    def read(self, start: int, stop: int) -> Tensor:
        """See `Holding.read`."""
        return torch.cat([self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop]], dim=-1)

    def _write(self, start: int, kv: Tensor) -> None:
        stop = start + kv.shape[2]
        widths = (self.keys.shape[-1], self.values.shape[-1])
        self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop] = kv.split_with_sizes(widths, dim=-1)

    def _move(self, sources: Sequence[int], start: int) -> None:
        stop, index = start + len(sources), torch.tensor(sources)
        self.keys[..., start:stop, :] = self.keys.index_select(-2, index)
        self.values[..., start:stop, :] = self.values.index_select(-2, index)
