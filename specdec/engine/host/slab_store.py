"""Slabs that take memory as they are written: address space for a session's limit, charged page by page.

A slab's pages lie where they will stay, so nothing is copied when it grows; what sessions share is copied to each.
"""

import math
import mmap

import torch
from torch import Tensor

from specdec.engine.host.slab import Slab
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_store import KvStore
from specdec.rules.blocks import BLOCK_TOKENS


class SlabStore(KvStore[Slab]):
    """The budget as a count of pages; the operating system has the pages themselves."""

    def __init__(self, layout: KvLayout, budget: int) -> None:
        super().__init__(layout, page_tokens(layout), budget)
        self._free = self.total
        self._cached = 0

    @property
    def free(self) -> int:
        """See `KvStore.free`."""
        return self._free

    @property
    def cached(self) -> int:
        """See `KvStore.cached`."""
        return self._cached

    def open(self, limit: int, root: bytes) -> Slab:
        """See `KvStore.open`."""
        layout = self.layout
        shape = (layout.layers, 1, layout.heads, self.pages(limit) * self.page_tokens)
        keys, values = (lazy(layout.dtype, *shape, width) for width in (layout.key_width, layout.value_width))
        return Slab(keys, values, limit, root)

    def shared(self, tokens: int) -> int:
        """None: see `KvStore.shared`."""
        return 0

    def share(self, holding: Slab, source: Slab, tokens: int) -> None:
        """See `KvStore.share`."""
        holding.take(source, tokens)

    def missing(self, holding: Slab, length: int) -> int:
        """See `KvStore.missing`."""
        return self.pages(length) - holding.pages

    def extend(self, holding: Slab, length: int) -> None:
        """See `KvStore.extend`."""
        more = self.missing(holding, length)
        holding.pages += more
        self._free -= more

    def retire(self, holding: Slab) -> None:
        """See `KvStore.retire`."""
        self._cached += holding.pages

    def pinned(self, holding: Slab) -> int:
        """See `KvStore.pinned`."""
        return holding.pages

    def drop(self, holding: Slab) -> None:
        """See `KvStore.drop`."""
        self._cached -= holding.pages
        self._free += holding.pages


def page_tokens(layout: KvLayout) -> int:
    """Tokens of one page: whole blocks, and whole pages of the operating system in every head of every layer.

    So a page is in memory or it is not, and pages that are counted are bytes that are used.
    """
    rows = (layout.key_width * layout.dtype.itemsize, layout.value_width * layout.dtype.itemsize)
    return math.lcm(BLOCK_TOKENS, *(mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, row) for row in rows))


def lazy(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor that takes memory only as it is written."""
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    # Address space of its own, which goes back to the system with the tensor. The allocator of torch would lend out
    # memory that is in use already, and huge pages would take more of it than is written to.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
