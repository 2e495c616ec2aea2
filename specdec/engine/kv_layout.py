"""What keys and values look like in memory: tokens, pages of tokens, and lazily filled slabs of pages."""

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.blocks import BLOCK_TOKENS
from specdec.errors import InternalError


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One token's keys and values, alike in every layer."""

    layers: int
    heads: int
    """Key/value heads, not query heads."""
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes over all layers."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize

    @property
    def page_tokens(self) -> int:
        """Tokens of one page: whole blocks, and whole pages of the operating system in every head of every layer.

        So a page is in memory or it is not, and pages that are counted are bytes that are used.
        """
        rows = (self.key_width * self.dtype.itemsize, self.value_width * self.dtype.itemsize)
        return math.lcm(BLOCK_TOKENS, *(mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, row) for row in rows))

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.page_tokens * self.token_bytes

    @property
    def is_lazy(self) -> bool:
        """Whether a slab takes memory only as it is written; elsewhere it takes all of it at once."""
        return self.device.type == "cpu"

    def pages(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def check(self, kv: Tensor, tokens: int) -> None:
        """Refuse what cannot be the keys and values of so many tokens.

        Raises:
            InternalError: another shape or type than [layers, heads, tokens, key_width + value_width].
        """
        shape = (self.layers, self.heads, tokens, self.key_width + self.value_width)
        if kv.shape != shape or kv.dtype != self.dtype:
            raise InternalError(f"keys and values are {kv.dtype} {tuple(kv.shape)}, not {self.dtype} {shape}")

    def slab(self, pages: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a session: [layers, 1, heads, pages · page_tokens, width] each."""
        shape = (self.layers, 1, self.heads, pages * self.page_tokens)
        return self._tensor(*shape, self.key_width), self._tensor(*shape, self.value_width)

    def _tensor(self, *shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        if not (self.is_lazy and count):
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        # Address space of its own, which goes back to the system with the tensor. The allocator of torch would lend out
        # memory that is in use already, and huge pages would take more of it than is written to.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = mmap.mmap(-1, count * self.dtype.itemsize, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=self.dtype).view(shape)
