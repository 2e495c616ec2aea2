"""The keys and values of every session: one contiguous slab each, reserved at admission under a byte budget."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.tree import Tree


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What one token's keys and values look like, alike in every layer."""

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


@dataclass(slots=True, eq=False)
class Slab:
    """One session's memory; positions from `length` on are never read before they are written again."""

    keys: Tensor
    """[layers, 1, heads, capacity, key_width]"""
    values: Tensor
    """[layers, 1, heads, capacity, value_width]"""
    capacity: int
    """Tokens that fit."""
    length: int = 0
    """Tokens with keys and values."""
    tree: Tree | None = None
    """What the last tokens are while no path of them has been kept; None when every token follows the one before."""

    def grow(self, count: int, tree: Tree | None) -> None:
        """Count the tokens that a pass has written; `tree` None for a chain."""
        self.length += count
        self.tree = tree

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; of a tree, no more than its trunk can stay."""
        chain = self.length if self.tree is None else self.length - len(self.tree) + self.tree.trunk
        if not 0 <= length <= chain:
            raise InternalError(f"cannot truncate {self.length} tokens, {chain} of them a chain, to {length}")
        self.length, self.tree = length, None

    def keep(self, base: int, path: Sequence[int]) -> None:
        """Keep the first `base` tokens and, of those behind, the ones at the indices `path`, moved up to follow them.

        Raises:
            InternalError: `path` does not lead down from the base.
        """
        count = self.length - base
        tree = Tree.chain(max(0, count)) if self.tree is None else self.tree
        if len(tree) != count or not tree.is_path(tuple(path)):
            raise InternalError(f"{list(path)} is no path of the {len(tree)} tokens behind {base}")
        settled = next((slot for slot, node in enumerate(path) if slot != node), len(path))
        if moved := path[settled:]:
            start, end = base + settled, base + len(path)
            source = base + torch.tensor(moved, device=self.keys.device)
            self.keys[..., start:end, :] = self.keys.index_select(-2, source)
            self.values[..., start:end, :] = self.values.index_select(-2, source)
        self.length, self.tree = base + len(path), None


class KvPool:
    """Sessions and their slabs; the sum of all slabs never passes the budget.

    A released slab goes back to the allocator at once, so memory cannot fragment between sessions of unlike size.
    """

    def __init__(self, layout: KvLayout, budget: int) -> None:
        self._layout = layout
        self._tokens = budget // layout.token_bytes
        self._free = self._tokens
        self._slabs: dict[str, Slab] = {}

    @property
    def capacity(self) -> int:
        """Tokens the whole budget holds."""
        return self._tokens

    @property
    def usage(self) -> float:
        """Reserved tokens / capacity."""
        return 1.0 - self._free / self._tokens if self._tokens else 0.0

    def reserve(self, session: str, capacity: int) -> bool:
        """Reserve a slab of `capacity` tokens for a new session; False when there is no room now."""
        if session in self._slabs:
            raise InternalError(f"session {session} is admitted already")
        if capacity > self._free:
            return False
        self._slabs[session] = self._slab(capacity)
        self._free -= capacity
        return True

    def release(self, session: str) -> None:
        """Give the session's slab back."""
        self._free += self[session].capacity
        del self._slabs[session]

    def __getitem__(self, session: str) -> Slab:
        try:
            return self._slabs[session]
        except KeyError:
            raise InternalError(f"session {session} is not admitted") from None

    def _slab(self, capacity: int) -> Slab:
        at = self._layout
        shape = (at.layers, 1, at.heads, capacity)
        keys = torch.empty(*shape, at.key_width, dtype=at.dtype, device=at.device)
        values = torch.empty(*shape, at.value_width, dtype=at.dtype, device=at.device)
        return Slab(keys, values, capacity)
