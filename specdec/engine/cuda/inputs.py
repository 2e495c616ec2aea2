"""The inputs of a pass over pages as one flat row of integers, copied to the device in one transfer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.engine.batch import PackedBatch
from specdec.engine.cuda.pages import PAGE_TOKENS, PageList
from specdec.trees.tree import Tree

MOST_NODES = 64
"""Largest number of tokens of a chunk with a tree, whose ancestors are bits of one word."""

_A = TypeVar("_A")
_Row = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PassShape:
    """The size of a pass with its padding."""

    tokens: int
    """New tokens of all sequences together, T."""
    sequences: int
    """Number of sequences, B."""
    queries: int
    """Largest number of new tokens of one sequence."""


class PassInputs(NamedTuple, Generic[_A]):
    """Views into the flat row, int64, of T tokens and B sequences with padding. Padding is read but writes nothing."""

    ids: _A
    """Token ids [T]."""
    positions: _A
    """Position of each token in its own sequence [T]."""
    slots: _A
    """Slot that each token's key and value are written to [T]; -1 for padding."""
    owner: _A
    """Index of each token's sequence [T]; -1 for padding, and for tokens of chunks that are gathered."""
    bits: _A
    """Bit j of a token of a tree is set when it sees the j-th new token of its own sequence [T]; 0 for a chain's."""
    keep: _A
    """Indices of the tokens that need logits [T], then zeros."""
    starts: _A
    """Index of each sequence's first token [B + 1]; after the last sequence, the number of tokens."""
    lengths: _A
    """Number of tokens of each sequence, including the new ones [B]; 0 for padding and for gathered chunks."""
    tables: _A
    """Index in `pages` of each sequence's first page [B]."""
    pages: _A
    """Page numbers of all sequences, one sequence after the other; the rest of the row is never read."""


def views(flat: Tensor, shape: PassShape) -> PassInputs[Tensor]:
    """Split the flat row of a pass of size `shape` into its parts."""
    sizes = _sizes(shape)
    return PassInputs(*flat.split_with_sizes([*sizes, flat.numel() - sum(sizes)]))


@dataclass(frozen=True, slots=True)
class SequenceShare:
    """The part of a pass that belongs to one sequence."""

    first: int
    """Index of the sequence's first new token."""
    start: int
    """Number of tokens of the sequence before the pass."""
    count: int
    """Number of new tokens."""
    tree: Tree | None
    """Tree of the new tokens; None for a chain."""
    table: int
    """Index of the sequence's first page in `PassInputs.pages`."""
    pages: int
    """Number of pages, including those of the new tokens."""


def sequence_shares(sequences: Sequence[PageList], batch: PackedBatch) -> Iterator[SequenceShare]:
    """The share of each sequence in a pass."""
    firsts = accumulate(batch.counts, initial=0)
    table = 0
    for sequence, first, count, tree in zip(sequences, firsts, batch.counts, batch.trees, strict=False):
        pages = -(-(sequence.length + count) // PAGE_TOKENS)
        yield SequenceShare(first, sequence.length, count, tree, table, pages)
        table += pages


def flatten(
    shape: PassShape, sequences: Sequence[PageList], batch: PackedBatch, shares: Sequence[SequenceShare], pin: bool
) -> Tensor:
    """The flat row of a pass, on the host, without spare room after the pages; in pinned memory if `pin` is set.

    `shares` are the `sequence_shares`; chunks of more than `shape.queries` tokens are gathered.
    """
    flat = torch.zeros(room(shape, sum(share.pages for share in shares)), dtype=torch.long, pin_memory=pin)
    row = PassInputs(*(part.numpy() for part in views(flat, shape)))
    total = len(batch.tokens)
    row.ids[:total], row.positions[:total], row.keep[: len(batch.keep)] = batch.tokens, batch.positions, batch.keep
    row.slots[total:], row.owner[:], row.starts[len(shares) :] = -1, -1, total
    for index, (share, sequence) in enumerate(zip(shares, sequences, strict=True)):
        _put(row, index, share, np.frombuffer(sequence.pages, dtype=np.int64, count=share.pages))
        if share.count <= shape.queries:
            _let_attend(row, index, share)
    return flat


def _put(row: PassInputs[_Row], index: int, share: SequenceShare, pages: _Row) -> None:
    """Write the slots and pages of one sequence."""
    rows, positions = slice(share.first, share.first + share.count), np.arange(share.start, share.start + share.count)
    row.slots[rows] = pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
    row.starts[index] = share.first
    row.tables[index] = share.table
    row.pages[share.table : share.table + share.pages] = pages


def _let_attend(row: PassInputs[_Row], index: int, share: SequenceShare) -> None:
    """Write the fields that let the new tokens of one sequence attend by kernels."""
    rows = slice(share.first, share.first + share.count)
    row.owner[rows] = index
    row.lengths[index] = share.start + share.count
    if share.tree is not None:
        row.bits[rows] = lineage_bits(share.tree)


def lineage_bits(tree: Tree) -> _Row:
    """Ancestors of each node of a tree [n]: bit j of node i is set if j is i or above it; at most MOST_NODES nodes."""
    bits: list[int] = []
    for node, parent in enumerate(tree.parents):
        bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
    return np.array(bits, dtype=np.uint64).view(np.int64)


def room(shape: PassShape, pages: int) -> int:
    """Length of the flat row of a pass of size `shape` over `pages` pages."""
    return sum(_sizes(shape)) + pages


def _sizes(shape: PassShape) -> list[int]:
    """Lengths of all parts of a flat row except the last."""
    return [shape.tokens] * 6 + [shape.sequences + 1] + [shape.sequences] * 2
