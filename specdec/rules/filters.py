"""The filters top-k, top-p and min-p, in that order: each is a least score to keep, so tokens that tie stay together.

Scores [N, V] are logits after temperature whose best in each row is 0. On the host the floor of a row is found in
time linear in the vocabulary. On another device the rows are sorted, because every look at a number would wait for the
device.
"""

import math
from collections.abc import Sequence

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
    weights = scores.exp()
    filtered = [row for row, wanted in enumerate(params) if _filters(wanted, scores.shape[-1])]
    if scores.is_cpu:
        for row in filtered:
            _filter_row(scores[row].numpy(), weights[row].numpy(), params[row])
    elif filtered:
        weights.mul_(scores >= _sorted_floors(scores, params))
    return weights.div_(weights.sum(-1, keepdim=True))


def _filters(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _filter_row(scores: np.ndarray, weights: np.ndarray, params: SamplingParams) -> None:
    """Set the weights [V] to 0 that one row does not keep."""
    # Multiplying by the comparison costs a tenth of what masking does: there is no branch for each token.
    np.multiply(weights, scores >= _floor(scores, weights, params), out=weights)


def _floor(scores: np.ndarray, weights: np.ndarray, params: SamplingParams) -> float:
    """The least score that one row [V] keeps; `weights` are the exponentials of its scores."""
    floor = _least_log(params)
    if 0 < params.top_k < len(scores):
        return max(_top_k_floor(scores, params), floor)
    if params.top_p < 1.0:
        return max(_nucleus_floor(scores, weights, params.top_p), floor)
    return floor


def _least_log(params: SamplingParams) -> float:
    """The best score is 0, so the threshold min_p · max p is ln min_p."""
    return math.log(params.min_p) if params.min_p > 0.0 else -math.inf


def _top_k_floor(scores: np.ndarray, params: SamplingParams) -> float:
    """The k-th best score of a row [V], or the end of the nucleus among what is at least as good."""
    last = np.partition(scores, -params.top_k)[-params.top_k]
    if params.top_p >= 1.0:
        return float(last)
    kept = scores[scores >= last]
    return _end_of_nucleus(kept, 0.0, params.top_p * float(np.exp(kept, dtype=np.float64).sum()))


def _nucleus_floor(scores: np.ndarray, weights: np.ndarray, top_p: float) -> float:
    """The score of the last of the most likely tokens of a row [V] whose mass first reaches top_p.

    A histogram over the scores finds the bin that it lies in, and only that is sorted.
    """
    if len(scores) < _WIDE or math.isnan(weights.sum()):
        return _end_of_nucleus(scores, 0.0, top_p * float(weights.sum(dtype=np.float64)))
    bins = np.minimum(scores * -_BINS_PER_NAT, _BINS - 1).astype(np.intp)
    mass = np.bincount(bins, weights=weights).cumsum()
    wanted = top_p * mass[-1]
    found = int(np.searchsorted(mass, wanted))
    return _end_of_nucleus(scores[bins == found], mass[found - 1] if found else 0.0, wanted)


def _end_of_nucleus(scores: np.ndarray, before: float, wanted: float) -> float:
    """The score with which the mass of `scores`, behind a mass of `before`, reaches `wanted`; NaN without any score."""
    best = np.sort(scores)[::-1]
    mine = np.exp(best, dtype=np.float64)
    inside = int((before + mine.cumsum() - mine < wanted).sum())
    return float(best[max(inside - 1, 0)]) if len(best) else math.nan


def _sorted_floors(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The least score that each row [N, V] keeps, [N, 1]."""
    vocab_size = scores.shape[-1]
    k, top_p, least = to_device(
        scores.device,
        torch.tensor([[min(each.top_k, vocab_size) or vocab_size] for each in params], dtype=torch.int64),
        torch.tensor([[each.top_p if each.top_p < 1.0 else math.inf] for each in params], dtype=torch.float64),
        torch.tensor([[_least_log(each)] for each in params], dtype=torch.float64),
    )
    best = scores.sort(descending=True).values
    kept = best >= best.gather(-1, k - 1)  # with the tokens that tie with the k-th
    mass = best.double().exp() * kept
    inside = kept & (mass.cumsum(-1) - mass < top_p * mass.sum(-1, keepdim=True))
    last = best.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_min_(0))  # nothing of a row of NaN is inside
    return torch.maximum(last, least.to(scores.dtype))
