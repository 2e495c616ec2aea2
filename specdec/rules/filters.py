"""The filters top-k, top-p and min-p, in that order: each is a least score to keep, so tokens that tie stay together.

Scores [N, V] are logits after temperature whose best in each row is 0. On the host the work of a row is linear in the
vocabulary; on another device a row is sorted, because every look at a number would wait for the device.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.rules.params import SamplingParams
from specdec.rules.transfer import to_device

_WIDE = 2048
"""Vocabulary from which a histogram finds a nucleus faster than a sort does."""
_BINS = 512
_BINS_PER_NAT = 16
"""A token in the last bin has less than e^-31 of the best token's probability."""


def filtered_softmax(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distributions [N, V] of what the filters leave."""
    floor = _floor(scores, params)
    if floor is None:
        return scores.softmax(-1)
    # Multiplying by the comparison costs a tenth of what masking does: there is no branch for each token.
    weights = scores.exp().mul_(scores >= floor)
    return weights.div_(weights.sum(-1, keepdim=True))


def _floor(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor | None:
    """The least score that each row keeps [N, 1]; None when no row has a filter."""
    top_k = {row: wanted.top_k for row, wanted in enumerate(params) if 0 < wanted.top_k < scores.shape[-1]}
    top_p = {row: wanted.top_p for row, wanted in enumerate(params) if wanted.top_p < 1.0}
    # The best score is 0, so the threshold min_p · max p is ln min_p.
    min_p = {row: math.log(wanted.min_p) for row, wanted in enumerate(params) if wanted.min_p > 0.0}
    if not (top_k or top_p or min_p):
        return None
    both = {row: top_p[row] for row in top_k if row in top_p}
    alone = {row: mass for row, mass in top_p.items() if row not in both}
    k_rows, k, _, mass, p_rows, p, m_rows, least = to_device(
        scores.device, *_listed(top_k), *_listed(both), *_listed(alone), *_listed(min_p)
    )
    floor = torch.full_like(scores[:, :1], -math.inf)
    if top_k:
        floor[k_rows] = _top_k_floor(_rows(scores, k_rows), k.long(), [row in both for row in top_k], mass)
    if alone:
        floor[p_rows] = nucleus_floor(_rows(scores, p_rows), p)
    if min_p:
        floor[m_rows] = torch.maximum(floor[m_rows], least.to(scores.dtype))
    return floor


def _listed(values: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Rows, int64 [n], and the value of each, float64 [n, 1]."""
    listed = torch.tensor(list(values.values()), dtype=torch.float64)
    return torch.tensor(list(values), dtype=torch.int64), listed[:, None]


def _rows(scores: Tensor, rows: Tensor) -> Tensor:
    """Some rows, in ascending order; all of them are not copied."""
    return scores if len(rows) == len(scores) else scores[rows]


def _top_k_floor(scores: Tensor, k: Tensor, nucleus: Sequence[bool], top_p: Tensor) -> Tensor:
    """The k-th best score of each row [n, 1], or the end of the nucleus among the k best where there is one.

    Args:
        scores: [n, V]
        k: int64 [n, 1]
        nucleus: which rows have top-p as well [n].
        top_p: of those rows, float64 [m, 1].
    """
    best = scores.topk(int(k.max()) if k.is_cpu else scores.shape[-1]).values
    floor = best.gather(-1, k - 1)
    if not any(nucleus):
        return floor
    (which,) = to_device(scores.device, torch.tensor([index for index, wanted in enumerate(nucleus) if wanted]))
    best, last, mine = best[which], floor[which], _rows(scores, which)
    place = torch.arange(best.shape[-1], device=best.device)
    mass = best.double().exp().masked_fill_(place >= k[which], 0.0)
    # Tokens that tie with the k-th are kept by top-k too, and belong to the whole that top-p is a share of.
    kept = (mine >= last).sum(-1, keepdim=True)
    whole = mass.sum(-1, keepdim=True) + (kept - k[which]) * last.double().exp()
    inside = (mass.cumsum(-1) - mass < top_p * whole) & (place < k[which])
    floor[which] = best.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_min_(0))  # NaN is inside nothing
    return floor


def nucleus_floor(scores: Tensor, top_p: Tensor) -> Tensor:
    """The score [n, 1] of the last of the most likely tokens whose mass first reaches top_p, float64 [n, 1]."""
    if not scores.is_cpu or scores.shape[-1] < _WIDE:
        return _sorted_floor(scores, top_p)
    floors = [_histogram_floor(row, mass) for row, mass in zip(scores.numpy(), top_p[:, 0].tolist(), strict=True)]
    return torch.tensor(floors, dtype=scores.dtype)[:, None]


def _sorted_floor(scores: Tensor, top_p: Tensor) -> Tensor:
    best = scores.sort(descending=True).values
    mass = (best - scores.logsumexp(-1, keepdim=True)).exp().double()
    inside = (mass.cumsum(-1) - mass < top_p).sum(-1, keepdim=True)
    return best.gather(-1, (inside - 1).clamp_min_(0))


def _histogram_floor(scores: np.ndarray, top_p: float) -> float:
    """The floor of one row [V]: a histogram over the scores finds the bin that it lies in, and only that is sorted."""
    weights = np.exp(scores)
    whole = float(weights.sum(dtype=np.float64))
    if math.isnan(whole):  # the row has no distribution, and nothing is kept of it
        return math.nan
    bins = np.minimum(scores * -_BINS_PER_NAT, _BINS - 1).astype(np.int32)
    mass = np.bincount(bins, weights=weights, minlength=_BINS).cumsum()
    found = min(int(np.searchsorted(mass, top_p * whole)), int(bins.max()))
    before = mass[found - 1] if found else 0.0
    best = np.sort(scores[bins == found])[::-1]
    mine = np.exp(best.astype(np.float64))
    inside = int((before + mine.cumsum() - mine < top_p * whole).sum())
    return float(best[max(inside - 1, 0)])
