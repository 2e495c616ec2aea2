"""Which tokens of one session have keys and values; how those lie in memory is the store's affair."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from specdec.errors import InternalError
from specdec.rules.tree import Tree


class SequenceKv(ABC):
    """Positions from `length` on are never read before they are written again."""

    __slots__ = ("limit", "root", "sealed", "tokens", "tree")

    def __init__(self, limit: int, root: bytes = b"") -> None:
        self.limit = limit
        """Tokens the session may reach."""
        self.root = root
        """What its first block is chained to, see `specdec.rules.blocks`."""
        self.tokens: list[int] = []
        """Those with keys and values."""
        self.tree: Tree | None = None
        """What the last tokens are while no path of them has been kept; None when each follows the one before."""
        self.sealed: list[bytes] = []
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
            self._move([base + node for node in moved], base + settled)
        self.tokens[base:] = [self.tokens[base + node] for node in path]
        self.tree = None

    def append(self, tokens: Sequence[int], kv: Tensor) -> None:
        """Append tokens with what `read` gave for them."""
        self._write(self.length, kv)
        self.grow(tokens)

    @abstractmethod
    def read(self, start: int, stop: int) -> Tensor:
        """The keys and values of tokens start..stop-1: [layers, heads, stop - start, key_width + value_width]."""

    @abstractmethod
    def _write(self, start: int, kv: Tensor) -> None:
        """Put keys and values, shaped as `read` gives them, at the positions from `start` on."""

    @abstractmethod
    def _move(self, sources: Sequence[int], start: int) -> None:
        """Copy the keys and values at the positions `sources` to those from `start` on."""
