"""Draws of last tokens on the host, by the sums of blocks of ids: one look at each number of p instead of several.

A cumulative sum over a vocabulary waits for one addition after the other, in float64. Sums of blocks do not, and only
the block that holds the drawn id is then summed step by step. What a draft takes from p lies at few ids, so a block
has the law of what is left at these ids and, for the others together, one number. Both ways round differently, by less
than a known margin: a number that falls within it of a border between two ids is drawn again the slow way, so every
token is the same.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.rules.acceptance import Rest, residual, sample_rest
from specdec.rules.checks import check_rows

_BLOCK = 128
"""Ids of a block."""
_ROUNDING = 2.0**-50
"""What one addition or division may change a sum by, relative to the whole: four times the rounding of float64."""

Sums = NDArray[np.float64]


def block_sums(p: Tensor, rows: int) -> Tensor:
    """Σp of each block of each row of p [rows, V] on the host, float64 [rows, ⌈V / 128⌉].

    A row with a negative number sums to -∞, as in `specdec.rules.checks.masses`.

    Raises:
        InternalError: p is not floating, or has another shape than [rows, V].
    """
    check_rows(p, rows)
    numbers = p.numpy()
    whole = numbers.shape[1] // _BLOCK * _BLOCK
    sums: Sums = numbers[:, :whole].reshape(rows, -1, _BLOCK).sum(-1, dtype=np.float64)
    if whole < numbers.shape[1]:
        sums = np.concatenate([sums, numbers[:, whole:].sum(-1, dtype=np.float64, keepdims=True)], axis=1)
    return torch.from_numpy(sums).masked_fill_(p.amin(-1, keepdim=True) < 0, -np.inf)


def sample_by_blocks(p: Tensor, sums: Tensor, rest: Rest, u: Tensor) -> Tensor:
    """What `specdec.rules.acceptance.sample_rest` draws, int64 [B]; `sums` are the `block_sums` of p [R, V]."""
    mass = sums.sum(-1)
    law = _Law.of(p, sums[rest.rows] / mass[rest.rows, None], mass, rest)
    drawn, sure = law.draw(p, mass, rest, u)
    if unsure := (~sure).nonzero()[:, 0].tolist():
        drawn[unsure] = sample_rest(p, mass, rest.part(unsure), u[unsure])
    return drawn


@dataclass(frozen=True, slots=True)
class _Law:
    """The law of last tokens, by blocks; float64."""

    blocks: Tensor
    """The block of each id of a support, int64 [B, K]."""
    at: Tensor
    """At the ids of each support [B, K]; 0 past its end."""
    others: Tensor
    """Of all other ids of each block [B, blocks]."""
    scale: Tensor
    """Over the target's probabilities, at those other ids [B, blocks]."""
    exact: Tensor
    """Whether the row is what is left and not p itself, which the sums of blocks cannot tell for sure [B]."""

    @classmethod
    def of(cls, p: Tensor, sums: Tensor, mass: Tensor, rest: Rest) -> "_Law":
        """The law of what is left; `sums` are those of the blocks of each row, of a mass of 1 [B, blocks]."""
        size, blocks = rest.ids.shape[1], rest.ids // _BLOCK
        supported = (p[rest.rows[:, None], rest.ids].double() / mass[rest.rows, None]).masked_fill_(rest.q == 0.0, 0.0)
        others = sums.scatter_add(1, blocks, -supported).clamp_min_(0.0)
        whole = torch.cat([supported, others], dim=1)
        left = residual(whole, rest.scale, torch.arange(size).expand(len(whole), -1), rest.q)
        exact = (left != whole).any(1) | (rest.q == 0.0).all(1)
        return cls(blocks, left[:, :size], left[:, size:], (left[:, size:] / others).nan_to_num_(0.0, 0.0), exact)

    def draw(self, p: Tensor, mass: Tensor, rest: Rest, u: Tensor) -> tuple[Tensor, Tensor]:
        """The ids drawn at u, int64 [B], and whether rounding cannot have changed each, bool [B]."""
        ends = self.others.scatter_add(1, self.blocks, self.at).cumsum(1)
        target = (u * ends[:, -1])[:, None]
        block = (ends <= target).sum(1, keepdim=True).clamp_max_(ends.shape[1] - 1)
        before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min_(0)), 0.0)
        ids = block * _BLOCK + torch.arange(_BLOCK)
        own = p[rest.rows[:, None], ids.clamp_max(p.shape[1] - 1)].double() / mass[rest.rows, None]
        own = own.mul_(self.scale.gather(1, block)).masked_fill_(ids >= p.shape[1], 0.0)
        row, place = ((self.blocks == block) & (rest.q > 0.0)).nonzero(as_tuple=True)
        own[row, rest.ids[row, place] % _BLOCK] = self.at[row, place]
        borders = torch.cat([before, before + own.cumsum(1)], dim=1)
        inside = (borders[:, 1:] <= target).sum(1, keepdim=True).clamp_max_(_BLOCK - 1)
        margin = _ROUNDING * p.shape[1]
        below, above = borders.gather(1, inside), borders.gather(1, inside + 1)
        sure = (below + margin < target) & (target + margin < above)
        return (block * _BLOCK + inside)[:, 0], sure[:, 0] & self.exact
