"""The pages themselves: keys and values of fixed numbers of tokens, allocated once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.kv_layout import KvLayout
from specdec.rules.blocks import BLOCK_TOKENS

PAGE_TOKENS = BLOCK_TOKENS
"""A page is a block: what is named by one hash is shared as one page. Only a fork shares a page that is not full."""


class Pages:
    """A slot is the place of one token: the page's number · PAGE_TOKENS + the token's place in the page."""

    def __init__(self, layout: KvLayout, total: int) -> None:
        shape = (layout.layers, total, PAGE_TOKENS, layout.heads)
        self.keys = torch.empty(*shape, layout.key_width, dtype=layout.dtype, device=layout.device)
        """[layers, pages, PAGE_TOKENS, heads, key_width]"""
        self.values = torch.empty(*shape, layout.value_width, dtype=layout.dtype, device=layout.device)
        """[layers, pages, PAGE_TOKENS, heads, value_width]"""
        self.device = layout.device

    def read(self, slots: Sequence[int]) -> Tensor:
        """[layers, heads, slots, key_width + value_width]"""
        index = self._index(slots)
        kv = torch.cat([part.index_select(1, index) for part in self._flat()], dim=-1)
        return kv.transpose(1, 2).contiguous()

    def write(self, slots: Sequence[int], kv: Tensor) -> None:
        """Put what `read` gave into slots."""
        index = self._index(slots)
        widths = (self.keys.shape[-1], self.values.shape[-1])
        parts = kv.to(self.device).transpose(1, 2).split_with_sizes(widths, dim=-1)
        for flat, part in zip(self._flat(), parts, strict=True):
            flat.index_copy_(1, index, part)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots to others; all are read before one is written."""
        index, places = self._index(sources), self._index(targets)
        for flat in self._flat():
            flat.index_copy_(1, places, flat.index_select(1, index))

    def copy(self, page: int, other: int) -> None:
        """Copy a whole page to another."""
        for part in (self.keys, self.values):
            part[:, other] = part[:, page]

    def _flat(self) -> tuple[Tensor, Tensor]:
        """Keys and values by slot: [layers, slots, heads, width]."""
        return self.keys.flatten(1, 2), self.values.flatten(1, 2)

    def _index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.long, device=self.device)
