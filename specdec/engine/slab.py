"""One session's keys and values, contiguous in every head, and the tokens they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.blocks import BLOCK_TOKENS
from specdec.errors import InternalError
from specdec.tree import Tree


@dataclass(slots=True, eq=False)
class Slab:
    """Positions from `length` on are never read before they are written again."""

    keys: Tensor
    """[layers, 1, heads, at least limit, key_width]"""
    values: Tensor
    """[layers, 1, heads, at least limit, value_width]"""
    limit: int
    """Tokens the session may reach."""
    root: bytes = b""
    """What its first block is chained to, see `specdec.blocks`."""
    pages: int = 0
    """Pages it is charged for."""
    tokens: list[int] = field(default_factory=list)
    """Those with keys and values."""
    tree: Tree | None = None
    """What the last tokens are while no path of them has been kept; None when every token follows the one before."""
    sealed: list[bytes] = field(default_factory=list)
    """Hashes of the blocks that other sessions may take."""

    @property
    def length(self) -> int:
        """Tokens with keys and values."""
        return len(self.tokens)

    @property
    def end_hash(self) -> bytes:
        """What the next block to be sealed is chained to."""
        return self.sealed[-1] if self.sealed else self.root

    def grow(self, tokens: Sequence[int], tree: Tree | None = None) -> None:
        """Take note of the tokens that a pass has written; `tree` None for a chain."""
        self.tokens += tokens
        self.tree = tree

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; of a tree, no more than its trunk can stay."""
        chain = self.length if self.tree is None else self.length - len(self.tree) + self.tree.trunk
        if not 0 <= length <= chain:
            raise InternalError(f"cannot truncate {self.length} tokens, {chain} of them a chain, to {length}")
        del self.tokens[length:]
        self.tree = None

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
        self.tokens[base:] = [self.tokens[base + node] for node in path]
        self.tree = None

    def take(self, source: "Slab", blocks: int) -> None:
        """Begin with the first `blocks` sealed blocks of another session."""
        count = blocks * BLOCK_TOKENS
        self.keys[..., :count, :] = source.keys[..., :count, :]
        self.values[..., :count, :] = source.values[..., :count, :]
        self.tokens = source.tokens[:count]

    def read(self, start: int, stop: int) -> Tensor:
        """The keys and values of tokens start..stop-1: [layers, heads, stop - start, key_width + value_width]."""
        return torch.cat([self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop]], dim=-1)

    def write(self, tokens: Sequence[int], kv: Tensor) -> None:
        """Append tokens with what `read` gave for them."""
        start, stop = self.length, self.length + len(tokens)
        widths = (self.keys.shape[-1], self.values.shape[-1])
        self.keys[:, 0, :, start:stop], self.values[:, 0, :, start:stop] = kv.split_with_sizes(widths, dim=-1)
        self.grow(tokens)
