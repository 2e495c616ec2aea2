"""The host's memory for keys and values, and passes that attend to one session after the other in each layer.

A slab reserves address space up to its session's limit, and takes memory page by page as it is written. It never moves,
so growth copies nothing. Tokens that sessions have in common are copied to each.
"""

import math
import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, attending
from specdec.engine.batch import PackedBatch
from specdec.engine.cpu.span import AttentionSpan
from specdec.engine.decoder import Decoder
from specdec.engine.kv.backend import KvBackend
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.sequence import SequenceKv
from specdec.engine.kv.store import KvStore
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.trees.tree import Tree


class Slab(SequenceKv):
    """The keys and values of one sequence, contiguous in every head."""

    __slots__ = ("keys", "pages", "values")

    def __init__(self, keys: Tensor, values: Tensor, limit: int, root: bytes = b"") -> None:
        super().__init__(limit, root)
        self.keys = keys
        """[layers, 1, heads, at least limit, key_width]"""
        self.values = values
        """[layers, 1, heads, at least limit, value_width]"""
        self.pages = 0
        """Number of pages that count against the budget."""

    def read(self, start: int, stop: int) -> Tensor:
        return torch.cat([self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop]], dim=-1)

    def _write(self, start: int, kv: Tensor) -> None:
        stop = start + kv.shape[2]
        widths = (self.keys.shape[-1], self.values.shape[-1])
        self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop] = kv.split_with_sizes(widths, dim=-1)

    def _move(self, sources: Sequence[int], start: int) -> None:
        stop, index = start + len(sources), torch.tensor(sources)
        self.keys[..., start:stop, :] = self.keys.index_select(-2, index)
        self.values[..., start:stop, :] = self.values.index_select(-2, index)


class SlabStore(KvStore[Slab]):
    """The budget as a number of pages; the operating system manages the pages themselves."""

    def __init__(self, layout: KvLayout, budget: int) -> None:
        super().__init__(layout, page_tokens(layout), budget)

    def open(self, limit: int, root: bytes) -> Slab:
        """A sequence without tokens, with address space for `limit` tokens."""
        layout = self.layout
        shape = (layout.layers, 1, layout.heads, self.pages(limit) * self.page_tokens)
        keys, values = (lazy(layout.dtype, *shape, width) for width in (layout.key_width, layout.value_width))
        return Slab(keys, values, limit, root)

    def shared(self, tokens: int) -> int:
        """0, because slabs share no pages."""
        return 0

    def share(self, sequence: Slab, source: Slab, tokens: int) -> None:
        sequence.keys[..., :tokens, :] = source.keys[..., :tokens, :]
        sequence.values[..., :tokens, :] = source.values[..., :tokens, :]

    def missing(self, sequence: Slab, length: int) -> int:
        return self.pages(length) - sequence.pages

    def extend(self, sequence: Slab, length: int) -> None:
        more = self.missing(sequence, length)
        sequence.pages += more
        self.free -= more

    def retire(self, sequence: Slab) -> None:
        self.cached += sequence.pages

    def pinned(self, sequence: Slab) -> int:
        return sequence.pages

    def drop(self, sequence: Slab) -> None:
        self.cached -= sequence.pages
        self.free += sequence.pages


def page_tokens(layout: KvLayout) -> int:
    """Tokens per page: whole blocks, and whole pages of the operating system in every head of every layer.

    So each page is either fully in memory or not at all, and the counted pages equal the used bytes.
    """
    rows = (layout.key_width * layout.dtype.itemsize, layout.value_width * layout.dtype.itemsize)
    return math.lcm(BLOCK_TOKENS, *(mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, row) for row in rows))


def lazy(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor whose memory is allocated only as it is written."""
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    # This address space is returned to the system with the tensor. PyTorch's allocator would return memory that is
    # already resident, and huge pages would take more memory than is written.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class SlabSpan(AttentionSpan):
    """The new tokens of a session in a slab; their keys and values follow the slab's `length` tokens."""

    def __init__(self, slab: Slab, count: int, tree: Tree | None = None) -> None:
        super().__init__(slab.length, count, tree)
        end = self.start + count
        keys, values = slab.keys[..., :end, :], slab.values[..., :end, :]
        self._keys, self._values = keys.unbind(), values.unbind()
        self._new_keys = keys[..., self.start :, :].unbind()
        self._new_values = values[..., self.start :, :].unbind()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Write the new keys and values of a layer, then attend; shapes as in `AttentionStep.attend` with T = count."""
        self._new_keys[layer].copy_(key)
        self._new_values[layer].copy_(value)
        keys, values = self._keys[layer], self._values[layer]
        if first := self.first_seen(rule.window):
            keys, values = keys[:, :, first:], values[:, :, first:]
        return self.over(query, keys, values, rule)


class HostStep:
    """The attention step of a pass over several sessions in slabs."""

    def __init__(self, spans: Sequence[SlabSpan]) -> None:
        self._spans = spans
        self._counts = [span.count for span in spans]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Attend with each session's queries to its own keys; shapes as in `AttentionStep.attend`."""
        if len(self._spans) == 1:
            return self._spans[0].attend(layer, query, key, value, rule)
        queries, keys, values = (tensor.split_with_sizes(self._counts, 2) for tensor in (query, key, value))
        shares = zip(self._spans, queries, keys, values, strict=True)
        return torch.cat([span.attend(layer, q, k, v, rule) for span, q, k, v in shares], dim=1)


AttendIn = Callable[[Sequence[Slab], PackedBatch], AbstractContextManager[None]]
"""Sets the attention of a pass over slabs in its thread until the context ends."""


def by_session(slabs: Sequence[Slab], batch: PackedBatch) -> AbstractContextManager[None]:
    """Attend to one session after the other on plain PyTorch."""
    spans = [SlabSpan(*share) for share in zip(slabs, batch.counts, batch.trees, strict=True)]
    return attending(HostStep(spans))


def open_host_backend(
    decoder: Decoder, layout: KvLayout, budget: int, attend_in: AttendIn = by_session
) -> KvBackend[Slab]:
    """Open slabs within a budget in bytes; memory is taken as it is written."""

    def run(slabs: Sequence[Slab], batch: PackedBatch) -> Tensor:
        with attend_in(slabs, batch):
            return decoder.logits(batch.tokens, batch.positions, batch.keep, batch.states)

    return KvBackend(SlabStore(layout, budget), run, warm=lambda: None)
