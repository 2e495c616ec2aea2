"""The keys and values of one sequence; subclasses define the memory layout."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from specdec.errors import InternalError
from specdec.trees.tree import Tree


class SequenceKv(ABC):
    """The tokens of a sequence that have keys and values.

    Positions from `length` on are never read before they are written again.
    """

    __slots__ = ("limit", "root", "sealed", "tokens", "tree")

    def __init__(self, limit: int, root: bytes = b"") -> None:
        self.limit = limit
        """Largest number of tokens that the sequence may have."""
        self.root = root
        """The hash that the first block is chained to, from `specdec.rules.blocks.root`."""
        self.tokens: list[int] = []
        """The tokens that have keys and values."""
        self.tree: Tree | None = None
        """Tree that the last tokens form until one of its paths is kept; None for a chain."""
        self.sealed: list[bytes] = []
        """Hashes of the blocks that other sequences may share."""

    @property
    def length(self) -> int:
        """Number of tokens that have keys and values."""
        return len(self.tokens)

    @property
    def end_hash(self) -> bytes:
        """The hash that the next sealed block is chained to."""
        return self.sealed[-1] if self.sealed else self.root

    def grow(self, tokens: Sequence[int], tree: Tree | None = None) -> None:
        """Append tokens whose keys and values a pass has written; `tree` None is a chain."""
        self.tokens += tokens
        self.tree = tree

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens; of a tree, at most the trunk can be kept.

        Raises:
            InternalError: `length` is above the number of tokens that form a chain.
        """
        chain = self.length if self.tree is None else self.length - len(self.tree) + self.tree.trunk
        if not 0 <= length <= chain:
            raise InternalError(f"cannot truncate {self.length} tokens, {chain} of them a chain, to {length}")
        del self.tokens[length:]
        self.tree = None

    def keep(self, base: int, path: Sequence[int]) -> None:
        """Keep the first `base` tokens and the path at the indices `path` of the tokens after them, moved together.

        Raises:
            InternalError: `path` is not a path that begins after the first `base` tokens.
        """
        count = self.length - base
        tree = Tree.chain(max(0, count)) if self.tree is None else self.tree
        if len(tree) != count or not tree.is_path(tuple(path)):
            raise InternalError(f"{list(path)} is no path of the {len(tree)} tokens after {base}")
        in_place = next((slot for slot, node in enumerate(path) if slot != node), len(path))
        if moved := path[in_place:]:
            self._move([base + node for node in moved], base + in_place)
        self.tokens[base:] = [self.tokens[base + node] for node in path]
        self.tree = None

    def append(self, tokens: Sequence[int], kv: Tensor) -> None:
        """Append tokens with the keys and values that `read` returned for them."""
        self._write(self.length, kv)
        self.grow(tokens)

    @abstractmethod
    def read(self, start: int, stop: int) -> Tensor:
        """A copy of the KV of tokens start..stop-1: [layers, heads, stop - start, key_width + value_width]."""

    @abstractmethod
    def _write(self, start: int, kv: Tensor) -> None:
        """Write keys and values, shaped as `read` returns them, to the positions from `start` on."""

    @abstractmethod
    def _move(self, sources: Sequence[int], start: int) -> None:
        """Copy the keys and values at the positions `sources` to the positions from `start` on."""
