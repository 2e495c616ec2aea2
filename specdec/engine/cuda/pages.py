"""Pages of keys and values: the memory, allocated once; the pages of each sequence; and the store of all pages.

Sequences share pages: a common prefix is stored once, and a shared page is copied before it is written.
"""

from array import array
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.sequence import SequenceKv
from specdec.engine.kv.store import KvStore
from specdec.rules.blocks import BLOCK_TOKENS

PAGE_TOKENS = BLOCK_TOKENS
"""A page holds one block, so that each block hash identifies one page, and only full pages are shared."""


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
        """Copy slots to other slots; all slots are read before any is written."""
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
        """Page numbers; pages after the last token are reserved for the next tokens."""

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


class PageStore(KvStore[PageList]):
    """Store of pages; the whole budget is allocated at once.

    A page is free, live (used by a running sequence) or cached (used by ended sequences only).
    """

    def __init__(self, layout: KvLayout, budget: int) -> None:
        super().__init__(layout, PAGE_TOKENS, budget)
        self.memory = Pages(layout, self.total)
        self._free_pages = list(reversed(range(self.total)))
        self._owners = [0] * self.total
        """Number of running and ended sequences that use each page."""
        self._running = [0] * self.total
        """Number of running sequences that use each page."""

    def open(self, limit: int, root: bytes) -> PageList:
        return PageList(self.memory, limit, root)

    def shared(self, tokens: int) -> int:
        return self.pages(tokens)

    def share(self, sequence: PageList, source: PageList, tokens: int) -> None:
        """Add the pages of the first `tokens` tokens of `source` to the sequence, without a copy."""
        sequence.pages = source.pages[: self.pages(tokens)]
        for page in sequence.pages:
            self.cached -= not self._running[page]
            self._owners[page] += 1
            self._running[page] += 1

    def missing(self, sequence: PageList, length: int) -> int:
        """Number of pages to take up to `length`, including copies of shared pages that will be written."""
        return self._unmapped(sequence, length) + len(self._to_write(sequence, length, self._owners))

    def needed(self, sequence: PageList, length: int) -> int:
        """Number of missing pages, without copies of pages that are shared only with ended sequences."""
        return self._unmapped(sequence, length) + len(self._to_write(sequence, length, self._running))

    def extend(self, sequence: PageList, length: int) -> None:
        """Take the missing pages, and copy shared pages that will be written."""
        for index in self._to_write(sequence, length, self._owners):
            page, own = sequence.pages[index], self._take_page()
            if index * PAGE_TOKENS < sequence.length:
                self.memory.copy(page, own)
            sequence.pages[index] = own
            self._retire_pages([page])
            self._drop_pages([page])
        while len(sequence.pages) < self.pages(length):
            sequence.pages.append(self._take_page())

    def retire(self, sequence: PageList) -> None:
        """Cache the pages of sealed blocks and free the others, which no sequence can share."""
        self._retire_pages(sequence.pages)
        self._drop_pages(sequence.pages[len(sequence.sealed) :])
        del sequence.pages[len(sequence.sealed) :]

    def pinned(self, sequence: PageList) -> int:
        """Number of the sequence's pages that only ended sequences use."""
        return sum(not self._running[page] for page in sequence.pages)

    def drop(self, sequence: PageList) -> None:
        self._drop_pages(sequence.pages)
        del sequence.pages[:]

    def _take_page(self) -> int:
        """Take a free page for one running sequence."""
        page = self._free_pages.pop()
        self.free -= 1
        self._owners[page] = self._running[page] = 1
        return page

    def _retire_pages(self, pages: Iterable[int]) -> None:
        """Remove a running sequence from the counts of these pages."""
        for page in pages:
            self._running[page] -= 1
            self.cached += not self._running[page]

    def _drop_pages(self, pages: Iterable[int]) -> None:
        """Remove these pages from an ended sequence; pages without another owner become free."""
        for page in pages:
            self._owners[page] -= 1
            if not self._owners[page]:
                self.cached -= 1
                self.free += 1
                self._free_pages.append(page)

    def _unmapped(self, sequence: PageList, length: int) -> int:
        """Number of pages up to `length` that the sequence does not have."""
        return max(0, self.pages(length) - len(sequence.pages))

    def _to_write(self, sequence: PageList, length: int, owners: Sequence[int]) -> list[int]:
        """Indices of the pages with several owners that the sequence writes when it grows to `length`."""
        if length <= sequence.length:
            return []
        first, last = sequence.length // PAGE_TOKENS, min(self.pages(length), len(sequence.pages))
        return [index for index in range(first, last) if owners[sequence.pages[index]] > 1]
