"""All that a pass over pages must be told, as one flat row of integers, so that one copy brings it to the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.engine.batch import Batch
from specdec.engine.paged.page_list import PageList
from specdec.engine.paged.pages import PAGE_TOKENS
from specdec.rules.tree import Tree

MOST_NODES = 64
"""Tokens of a chunk up to which its tree is told by bits."""

_A = TypeVar("_A")
_Row = NDArray[np.int64]
_CHAIN = np.array([(1 << (node + 1)) - 1 for node in range(MOST_NODES)], dtype=np.uint64).view(np.int64)


@dataclass(frozen=True, slots=True)
class Shape:
    """Room in a pass: at least as much as it takes, the rest is padding."""

    tokens: int
    sequences: int
    queries: int
    """New tokens of one sequence."""


class Inputs(NamedTuple, Generic[_A]):
    """Views into the flat row; int64. T tokens and B sequences with the padding, which is read but writes nothing."""

    ids: _A
    """[T]"""
    positions: _A
    """[T], absolute in each token's own session."""
    slots: _A
    """[T], where the new keys and values go; -1 for padding."""
    owner: _A
    """[T], index of the token's sequence; -1 for padding, and for tokens of chunks that are gathered."""
    bits: _A
    """[T], bit j is set where the token sees the j-th new token of its own sequence."""
    keep: _A
    """[T], indices of the tokens whose logits are wanted; behind them zeros."""
    starts: _A
    """[B + 1], each sequence's first token among the T; all of the padding's are the end of the last."""
    lengths: _A
    """[B], tokens of each sequence, the new ones included; 0 for padding, and for chunks that are gathered."""
    tables: _A
    """[B], where each sequence's pages begin in `pages`."""
    pages: _A
    """The pages of all sequences, one after the other; what is behind them is never read."""


def views(flat: Tensor, shape: Shape) -> Inputs[Tensor]:
    """The parts of the flat row of a pass of that shape."""
    sizes = _sizes(shape)
    return Inputs(*flat.split_with_sizes([*sizes, flat.numel() - sum(sizes)]))


@dataclass(frozen=True, slots=True)
class Reach:
    """What one sequence of a pass takes."""

    first: int
    """Its first token among the T."""
    start: int
    """Its tokens before the pass."""
    count: int
    tree: Tree | None
    table: int
    """Where its pages begin in `Inputs.pages`."""
    pages: int
    """How many they are."""


def reaches(holdings: Sequence[PageList], batch: Batch) -> Iterator[Reach]:
    """Each sequence's share of a pass."""
    firsts = accumulate(batch.counts, initial=0)
    table = 0
    for holding, first, count, tree in zip(holdings, firsts, batch.counts, batch.trees, strict=False):
        pages = -(-(holding.length + count) // PAGE_TOKENS)
        yield Reach(first, holding.length, count, tree, table, pages)
        table += pages


def flatten(shape: Shape, holdings: Sequence[PageList], batch: Batch, shares: Sequence[Reach], pin: bool) -> Tensor:
    """The flat row of a pass on the host, no longer than it must be.

    Args:
        shape: has room for the pass.
        holdings: of the sequences.
        batch: what they compute.
        shares: of them, see `reaches`; chunks of more than `shape.queries` are left to be gathered.
        pin: whether the row is to be in pinned memory.
    """
    flat = torch.zeros(room(shape, sum(share.pages for share in shares)), dtype=torch.long, pin_memory=pin)
    row = Inputs(*(part.numpy() for part in views(flat, shape)))
    total = len(batch.tokens)
    row.ids[:total], row.positions[:total], row.keep[: len(batch.keep)] = batch.tokens, batch.positions, batch.keep
    row.slots[total:], row.owner[:], row.starts[len(shares) :] = -1, -1, total
    for index, (share, holding) in enumerate(zip(shares, holdings, strict=True)):
        _put(row, index, share, np.frombuffer(holding.pages, dtype=np.int64, count=share.pages))
        if share.count <= shape.queries:
            _let_attend(row, index, share)
    return flat


def _put(row: Inputs[_Row], index: int, share: Reach, pages: _Row) -> None:
    """Where one sequence's tokens and pages are."""
    rows, positions = slice(share.first, share.first + share.count), np.arange(share.start, share.start + share.count)
    row.slots[rows] = pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
    row.starts[index] = share.first
    row.tables[index] = share.table
    row.pages[share.table : share.table + share.pages] = pages


def _let_attend(row: Inputs[_Row], index: int, share: Reach) -> None:
    """What one sequence's tokens see."""
    rows = slice(share.first, share.first + share.count)
    row.owner[rows] = index
    row.lengths[index] = share.start + share.count
    row.bits[rows] = _CHAIN[: share.count] if share.tree is None else lineage_bits(share.tree)


def lineage_bits(tree: Tree) -> _Row:
    """[n]: bit j of node i is set where j is i or above it; at most MOST_NODES nodes."""
    bits: list[int] = []
    for node, parent in enumerate(tree.parents):
        bits.append(1 << node | (bits[parent] if parent >= 0 else 0))
    return np.array(bits, dtype=np.uint64).view(np.int64)


def room(shape: Shape, pages: int) -> int:
    """Length of the flat row of a pass of that shape over so many pages."""
    return sum(_sizes(shape)) + pages


def _sizes(shape: Shape) -> list[int]:
    """Of the parts of a flat row but the last."""
    return [shape.tokens] * 6 + [shape.sequences + 1] + [shape.sequences] * 2
