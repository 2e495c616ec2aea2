"""Draws from wide distributions on the host, by the sums of blocks of ids: one look at each number instead of several.

A cumulative sum over a vocabulary waits for one addition after the other, in float64. Sums of blocks do not, and only
the block that holds the drawn id is then summed step by step. What a draft takes from p lies at few ids, so a block
has the law of what is left at these ids and, for the others together, one number. Both ways round differently, by less
than a known margin: a number that falls within it of a border between two ids is drawn again the slow way, so every
token is the same.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.rules.acceptance import Rest, residual, sample_rest
from specdec.rules.cache import parts
from specdec.rules.checks import check_rows, masses
from specdec.rules.sampling import sample

WIDE = 8192
"""Vocabulary from which it pays to draw behind drafts by blocks."""
BLOCK = 128
"""Ids of a block."""
_ROUNDING = 2.0**-50
"""What one addition or division may change a sum by, relative to the whole: four times the rounding of float64."""

_Floats = NDArray[np.float64]
_Ids = NDArray[np.int64]
_Inside = Callable[[_Ids, _Ids], _Floats]
"""The law inside a block of each row, by block [N, 1] and by ids [N, 128]; both are valid."""


def block_sums(p: Tensor, rows: int) -> Tensor:
    """Σp of each block of each row of p [rows, V] on the host, float64 [rows, ⌈V / 128⌉].

    A row with a negative number sums to -∞, as in `specdec.rules.checks.masses`.

    Raises:
        InternalError: p is not floating, or has another shape than [rows, V].
    """
    check_rows(p, rows)
    if p.dtype != torch.float32:  # which no model gives
        return block_sums_on_host(p)
    sums: Tensor = torch.ops.specdec.block_sums(p)
    return sums


def block_sums_on_host(p: Tensor) -> Tensor:
    """What `block_sums` returns, by PyTorch."""
    cuts = parts(*p.shape)
    return _sums(p) if len(cuts) < 2 else torch.cat([_sums(p[part]) for part in cuts])


# `host_draw.cpp` of the engine is an implementation for the CPU, where it can be had.
torch.library.define("specdec::block_sums", "(Tensor p) -> Tensor")
torch.library.impl("specdec::block_sums", "CompositeExplicitAutograd", block_sums_on_host)


def _sums(p: Tensor) -> Tensor:
    """The same of as many rows as the cache holds in float64: the host adds up a copy faster than numbers it widens."""
    whole = p.shape[1] // BLOCK * BLOCK
    sums = p[:, :whole].reshape(len(p), whole // BLOCK, BLOCK).double().sum(-1)
    if whole < p.shape[1]:
        sums = torch.cat([sums, p[:, whole:].double().sum(-1, keepdim=True)], dim=1)
    return sums.masked_fill_(p.amin(-1, keepdim=True) < 0, -torch.inf)


def sample_by_blocks(p: Tensor, sums: Tensor, u: Tensor) -> Tensor:
    """What `specdec.rules.sampling.sample` draws from each row of p [N, V], divided by its sum, at u [N]; int64 [N].

    `sums` are the `block_sums` of p.
    """
    numbers, rows, blocks = p.numpy(), np.arange(len(p))[:, None], sums.numpy()
    drawn, sure = _draw(blocks, lambda _, ids: numbers[rows, ids].astype(np.float64), u, blocks.sum(1), p.shape[1])
    if unsure := np.flatnonzero(~sure).tolist():
        some = p[unsure]
        drawn[unsure] = sample(some.double() / masses(some, len(some))[:, None], u[unsure])
    return drawn


def sample_rest_by_blocks(p: Tensor, sums: Tensor, rest: Rest, u: Tensor) -> Tensor:
    """What `specdec.rules.acceptance.sample_rest` draws at u [B], int64 [B]; `sums` are the `block_sums` of p [R, V].

    The others of a block are one id more to the rule that says what is left.
    """
    mass, size, blocks = sums.sum(-1), rest.ids.shape[1], rest.ids // BLOCK
    own = mass[rest.rows, None]
    supported = (p[rest.rows[:, None], rest.ids].double() / own).masked_fill_(rest.q == 0.0, 0.0)
    others = (sums[rest.rows] / own).scatter_add_(1, blocks, -supported).clamp_min_(0.0)
    whole = torch.cat([supported, others], dim=1)
    left = residual(whole, rest.scale, torch.arange(size).expand(len(whole), -1), rest.q)
    scale = (left[:, size:] / others).nan_to_num_(0.0, 0.0)
    taken = rest.q > 0.0

    def inside(block: _Ids, ids: _Ids) -> _Floats:
        chosen = torch.from_numpy(block)
        found = p[rest.rows[:, None], torch.from_numpy(ids)].double() / own * scale.gather(1, chosen)
        row, place = ((blocks == chosen) & taken).nonzero(as_tuple=True)
        found[row, rest.ids[row, place] % BLOCK] = left[row, place]
        return found.numpy()

    law = left[:, size:].scatter_add(1, blocks, left[:, :size])
    drawn, sure = _draw(law.numpy(), inside, u, np.ones(len(law)), p.shape[1])
    # Whether nothing is left, so that the law is p itself, is more than the sums of blocks can tell for sure.
    exact = (left != whole).any(1) | ~taken.any(1)
    if unsure := np.flatnonzero(~(sure & exact.numpy())).tolist():
        drawn[unsure] = sample_rest(p, mass, rest.part(unsure), u[unsure])
    return drawn


@np.errstate(invalid="ignore")  # rows that are no distribution are not sure
def _draw(law: _Floats, inside: _Inside, u: Tensor, mass: _Floats, wide: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """The ids drawn at u, int64 [N], and whether rounding cannot have changed them, bool [N].

    Args:
        law: of each block, not normalised [N, blocks].
        inside: the law inside a block.
        mass: what the numbers that the law was made of sum to [N].
        wide: ids of the vocabulary.
    """
    ends = law.cumsum(1)
    target = (u.numpy() * ends[:, -1])[:, None]
    block = np.minimum((ends <= target).sum(1, keepdims=True), ends.shape[1] - 1)
    rows = np.arange(len(law))[:, None]
    before = np.where(block > 0, ends[rows, block - 1], 0.0)
    ids = block * BLOCK + np.arange(BLOCK)
    own = np.where(ids < wide, inside(block, np.minimum(ids, wide - 1)), 0.0)
    borders = np.concatenate([before, before + own.cumsum(1)], axis=1)
    place = np.minimum((borders[:, 1:] <= target).sum(1, keepdims=True), BLOCK - 1)
    margin = (_ROUNDING * wide * mass)[:, None]
    sure = (borders[rows, place] + margin < target) & (target + margin < borders[rows, place + 1])
    return torch.from_numpy((block * BLOCK + place)[:, 0]), sure[:, 0]
