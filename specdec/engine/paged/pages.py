"""Pages of keys and values: the memory itself, allocated once, and the list of pages that one sequence has."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.engine.kv_layout import KvLayout
from specdec.engine.sequence_kv import SequenceKv
from specdec.rules.blocks import BLOCK_TOKENS

PAGE_TOKENS = BLOCK_TOKENS
"""A page is a block, so that what one hash identifies is shared as one page, and only full pages are shared."""


class Pages:
    """Keys and values by slot. The slot of a token is the number of its page · PAGE_TOKENS + its index in the page."""

    def __init__(self, layout: KvLayout, total: int) -> None:
        shape = (layout.layers, total, PAGE_TOKENS, layout.heads)
        self.keys = torch.empty(*shape, layout.key_width, dtype=layout.dtype, device=layout.device)
        """[layers, pages, PAGE_TOKENS, heads, key_width]"""
        self.values = torch.empty(*shape, layout.value_width, dtype=layout.dtype, device=layout.device)
        """[layers, pages, PAGE_TOKENS, heads, value_width]"""
        self.device = layout.device

    def read(self, slots: Sequence[int]) -> Tensor:
        """A copy of the keys and values in slots: [layers, heads, slots, key_width + value_width]."""
        index = self._index(slots)
        kv = torch.cat([part.index_select(1, index) for part in self._flat()], dim=-1)
        return kv.transpose(1, 2).contiguous()

    def write(self, slots: Sequence[int], kv: Tensor) -> None:
        """Write keys and values, shaped as `read` returns them, to slots."""
        index = self._index(slots)
        widths = (self.keys.shape[-1], self.values.shape[-1])
        parts = kv.to(self.device).transpose(1, 2).split_with_sizes(widths, dim=-1)
        for flat, part in zip(self._flat(), parts, strict=True):
            flat.index_copy_(1, index, part)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots to other slots; all are read before any is written."""
        index, places = self._index(sources), self._index(targets)
        for flat in self._flat():
            flat.index_copy_(1, places, flat.index_select(1, index))

    def copy(self, page: int, other: int) -> None:
        for part in (self.keys, self.values):
            part[:, other] = part[:, page]

    def _flat(self) -> tuple[Tensor, Tensor]:
        """Keys and values by slot: [layers, slots, heads, width]."""
        return self.keys.flatten(1, 2), self.values.flatten(1, 2)

    def _index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.long, device=self.device)


class PageList(SequenceKv):
    """The pages of one sequence in the order of its tokens; `PageStore.extend` copies a shared page before a write."""

    __slots__ = ("_memory", "pages")

    def __init__(self, memory: Pages, limit: int, root: bytes = b"") -> None:
        super().__init__(limit, root)
        self._memory = memory
        self.pages = array("q")
        """Page numbers; pages behind the last token are reserved for the next ones."""

    def slots(self, start: int, stop: int) -> list[int]:
        return [self.slot(position) for position in range(start, stop)]

    def slot(self, position: int) -> int:
        return self.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS

    def read(self, start: int, stop: int) -> Tensor:
        return self._memory.read(self.slots(start, stop))

    def _write(self, start: int, kv: Tensor) -> None:
        self._memory.write(self.slots(start, start + kv.shape[2]), kv)

    def _move(self, sources: Sequence[int], start: int) -> None:
        self._memory.move([self.slot(source) for source in sources], self.slots(start, start + len(sources)))
