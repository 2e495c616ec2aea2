"""Chunks of many sessions, joined into one packed row of tokens, the input of a forward pass."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from specdec.errors import FieldInvalid, InternalError
from specdec.trees.tree import Tree


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one session for a pass, which extends the session's KV by `len(tokens)` positions."""

    session: str
    tokens: Sequence[int]
    """Token ids, at least one; the position of the first is the session's length."""
    logits: int
    """Number of LAST tokens that need logits, in 0..len(tokens)."""
    parents: Sequence[int] | None = None
    """Index of each token's parent among the tokens, -1 for the session's last token; None for a chain. After a tree
    the session must keep one of its paths before its next chunk."""


class StateRows:
    """Destination of the hidden states of a pass: one tensor for each tapped layer."""

    def __init__(self, total: int) -> None:
        """Expect the states of `total` tokens."""
        self._total = total
        self._layers: tuple[Tensor, ...] = ()
        self._parts: list[tuple[list[int], StateRows]] = []
        """Rows and states of each part of the pass."""

    def part(self, rows: Sequence[int]) -> "StateRows":
        """Return the destination of a part of the pass that computes the tokens `rows`. Parts may run in threads."""
        part = StateRows(len(rows))
        self._parts.append((list(rows), part))
        return part

    def put(self, layers: Sequence[Tensor]) -> None:
        """Store the states of all tokens [T, hidden] of each layer, without a copy."""
        self._layers = tuple(layers)

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """States [T, hidden] of each tapped layer, in the order of the taps; empty before the pass."""
        if not self._parts:
            return self._layers
        whole = tuple(each.new_empty(self._total, *each.shape[1:]) for each in self._parts[0][1].layers)
        for rows, part in self._parts:
            for layer, own in zip(whole, part.layers, strict=True):
                layer[rows] = own
        return whole


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One packed row of the T tokens of all chunks, chunk after chunk."""

    tokens: list[int]
    """Token ids [T]."""
    positions: list[int]
    """Position of each token in its own session [T]."""
    counts: list[int]
    """Number of tokens of each chunk; the sum is T."""
    trees: list[Tree | None]
    """Tree of each chunk; None for a chain."""
    keep: list[int]
    """Indices of the tokens that need logits, ascending, in 0..T-1."""
    states: StateRows | None = None
    """Destination of the hidden states of all tokens; None if nothing reads them."""

    def part(self, chunks: Sequence[int]) -> tuple["PackedBatch", list[int]]:
        """Select chunks by index. Return them as a batch, and the rows of their logits among all logits."""
        starts = [0, *accumulate(self.counts)]
        tokens = [token for chunk in chunks for token in range(starts[chunk], starts[chunk + 1])]
        states = None if self.states is None else self.states.part(tokens)
        part, rows = PackedBatch([], [], [], [], [], states), list[int]()
        for chunk in chunks:
            start, stop = starts[chunk], starts[chunk + 1]
            own = range(bisect_left(self.keep, start), bisect_left(self.keep, stop))
            rows += own
            part.keep.extend(self.keep[row] - start + len(part.tokens) for row in own)
            part.tokens.extend(self.tokens[start:stop])
            part.positions.extend(self.positions[start:stop])
            part.counts.append(self.counts[chunk])
            part.trees.append(self.trees[chunk])
        return part, rows


def pack(chunks: Sequence[Chunk], lengths: Sequence[int], vocab_size: int, *, states: bool = False) -> PackedBatch:
    """Join `chunks`; `lengths` has the number of tokens with KV of each chunk's session.

    `states` requests the hidden states of all tokens from a decoder with taps.

    Raises:
        InternalError: two chunks belong to one session, a chunk has no tokens, an id is outside the vocabulary, a chunk
            wants more logits than tokens, or parents do not form a tree.
    """
    tokens: list[int] = []
    positions: list[int] = []
    counts: list[int] = []
    trees: list[Tree | None] = []
    keep: list[int] = []
    if len({chunk.session for chunk in chunks}) != len(chunks):
        raise InternalError("a session has two chunks in one forward pass")
    for chunk, start in zip(chunks, lengths, strict=True):
        _check(chunk, vocab_size)
        count = len(chunk.tokens)
        tokens += chunk.tokens
        tree = _tree(chunk)
        positions += range(start, start + count) if tree is None else (start + depth for depth in tree.depths)
        counts.append(count)
        trees.append(tree)
        keep += range(len(tokens) - chunk.logits, len(tokens))
    return PackedBatch(tokens, positions, counts, trees, keep, StateRows(len(tokens)) if states else None)


def _check(chunk: Chunk, vocab_size: int) -> None:
    if not chunk.tokens:
        raise InternalError(f"session {chunk.session}: a chunk without tokens")
    if not 0 <= chunk.logits <= len(chunk.tokens):
        raise InternalError(f"session {chunk.session}: {chunk.logits} logits wanted of {len(chunk.tokens)} tokens")
    if min(chunk.tokens) < 0 or max(chunk.tokens) >= vocab_size:
        raise InternalError(f"session {chunk.session}: a token id outside 0..{vocab_size - 1}")


def _tree(chunk: Chunk) -> Tree | None:
    if chunk.parents is None:
        return None
    if len(chunk.parents) != len(chunk.tokens):
        raise InternalError(f"session {chunk.session}: {len(chunk.parents)} parents of {len(chunk.tokens)} tokens")
    try:
        tree = Tree(tuple(chunk.parents))
    except FieldInvalid as invalid:
        raise InternalError(f"session {chunk.session}: {invalid.message}") from invalid
    return None if tree.is_chain else tree
