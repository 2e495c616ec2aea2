"""Draws from wide distributions on the host, by the sums of blocks of ids: one look at each number instead of several.

A cumulative sum over a vocabulary waits for one addition after the other, in float64. Sums of blocks do not, and only
the block that holds the drawn id is then summed step by step. Both ways round differently, by less than a known margin:
a number that falls within it of a border between two ids is drawn again the slow way, so every token is the same.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.rules.checks import check_rows, masses
from specdec.rules.sampling import sample

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


@np.errstate(invalid="ignore")  # rows that are no distribution are not sure
def sample_by_blocks(p: Tensor, sums: Tensor, u: Tensor) -> Tensor:
    """What `specdec.rules.sampling.sample` draws from each row of p [N, V], divided by its sum, at u [N]; int64 [N].

    `sums` are the `block_sums` of p.
    """
    ends = sums.numpy().cumsum(1)
    target = u.numpy() * ends[:, -1]
    block = np.minimum((ends <= target[:, None]).sum(1), ends.shape[1] - 1)
    rows = np.arange(len(ends))
    before = np.where(block > 0, ends[rows, block - 1], 0.0)
    borders = _borders(p.numpy(), rows, block, before)
    inside = np.minimum((borders[:, 1:] <= target[:, None]).sum(1), _BLOCK - 1)
    margin = _ROUNDING * p.shape[1] * ends[:, -1]
    sure = (borders[rows, inside] + margin < target) & (target + margin < borders[rows, inside + 1])
    drawn = torch.from_numpy(block * _BLOCK + inside)
    if unsure := np.flatnonzero(~sure).tolist():
        some = p[unsure]
        drawn[unsure] = sample(some.double() / masses(some, len(some))[:, None], u[unsure])
    return drawn


def _borders(p: NDArray[np.floating], rows: NDArray[np.int64], block: NDArray[np.int64], before: Sums) -> Sums:
    """The mass before each id of a row's block and behind its last, [N, 129]; ids past the vocabulary have none."""
    ids = block[:, None] * _BLOCK + np.arange(_BLOCK)
    own = np.where(ids < p.shape[1], p[rows[:, None], np.minimum(ids, p.shape[1] - 1)], 0.0)
    return np.concatenate([before[:, None], before[:, None] + own.cumsum(1, dtype=np.float64)], axis=1)
