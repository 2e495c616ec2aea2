"""Temperature and the filters top-k, top-p and min-p: each keeps weights from a floor up, so tied tokens stay together.

The weights [N, V] of a row are its probabilities scaled so that the best is 1. On the host only a part of a wide row is
sorted: a sample of the row estimates which part, and the sum of the rest checks the estimate. On a device whole rows
are sorted, because reading a value would wait for the device. If a C++ compiler is available, one host operator does
all of this.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.sampling.cache import empty, parts
from specdec.sampling.params import SamplingParams
from specdec.sampling.transfer import to_device

_WIDE = 8192
"""Least vocabulary size for which only a part of a row is sorted."""
_SAMPLE = 2048
"""Number of evenly spaced weights of a row in its sample."""
_ERRORS = 4.0
"""Tolerated error of a sample, in standard deviations; with a larger error, the whole row is sorted."""

_Weights = NDArray[np.floating[Any]]


def distributions(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, which is above 0, filters and softmax to logits [N, V] after all edits."""
    if not scores.is_cpu or scores.dtype != torch.float32:  # the operator takes float32 on the host only
        return _by_torch(scores, params)
    limits = [[wanted.temperature, wanted.top_k, wanted.top_p, wanted.min_p] for wanted in params]
    p: Tensor = torch.ops.specdec.distributions(scores, torch.tensor(limits, dtype=torch.float64))
    return p


def distributions_on_host(scores: Tensor, limits: Tensor) -> Tensor:
    """PyTorch implementation of `distributions`; `limits` are temperature, top-k, top-p, min-p, float64 [N, 4]."""
    rows = list(map(tuple, limits.tolist()))
    known = {row: SamplingParams(row[0], top_k=int(row[1]), top_p=row[2], min_p=row[3]) for row in dict.fromkeys(rows)}
    p = empty(scores.shape, scores.dtype)
    for part in parts(*scores.shape):
        p[part] = _by_torch(scores[part], [known[row] for row in rows[part]])
    return p


# `host_distributions.cpp` of the engine registers an implementation for the CPU, if it is available.
torch.library.define("specdec::distributions", "(Tensor scores, Tensor limits) -> Tensor")
torch.library.impl("specdec::distributions", "CompositeExplicitAutograd", distributions_on_host)


def _by_torch(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    temperatures = [wanted.temperature for wanted in params]
    if any(temperature != 1.0 for temperature in temperatures):
        (divisors,) = to_device(scores.device, torch.tensor(temperatures, dtype=torch.float64))
        divisors = divisors.to(scores.dtype).clamp_min_(torch.finfo(scores.dtype).tiny)[:, None]
        scores = (scores - scores.amax(-1, keepdim=True)).div_(divisors)  # the best is 0, so nothing overflows
    return filtered_softmax(scores, params)


def filtered_softmax(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply filters and softmax to logits [N, V] after temperature."""
    filtered = [row for row, wanted in enumerate(params) if _filters(wanted, scores.shape[-1])]
    if len(filtered) == len(params):
        return _filtered(scores - scores.amax(-1, keepdim=True), params)
    p = scores.softmax(-1)
    if filtered:
        (rows,) = to_device(scores.device, torch.tensor(filtered))
        own = scores[rows]
        p[rows] = _filtered(own.sub_(own.amax(-1, keepdim=True)), [params[row] for row in filtered])
    return p


def _filtered(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Distributions of rows that all have a filter, computed in place; the best score of each row is 0."""
    weights = scores.exp_()
    _filter(weights, params)
    return weights.div_(weights.sum(-1, keepdim=True))


def _filters(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _filter(weights: Tensor, params: Sequence[SamplingParams]) -> None:
    """Set weights [N, V] that their rows do not keep to 0."""
    if weights.is_cpu:
        for row, wanted in zip(weights, params, strict=True):
            _filter_row(row, wanted)
    else:
        weights.mul_(weights >= _sorted_floors(weights, params))


def _filter_row(weights: Tensor, params: SamplingParams) -> None:
    """Set weights [V] that one row does not keep to 0."""
    row = weights.numpy()
    under = np.nextafter(row.dtype.type(_floor(weights, params)), row.dtype.type(-1.0))
    torch.threshold_(weights, float(under), 0.0)  # one pass without branches; NaN stays


def _floor(weights: Tensor, params: SamplingParams) -> float:
    """The least weight that one row [V] keeps."""
    if 0 < params.top_k < len(weights):
        return max(_top_k_floor(weights.numpy(), params), params.min_p)
    if params.top_p < 1.0:
        return max(_nucleus_floor(weights, params.top_p), params.min_p)
    return params.min_p


def _top_k_floor(weights: _Weights, params: SamplingParams) -> float:
    """The k-th best weight of a row [V], or the end of the nucleus among the weights that are at least as good."""
    best = _likely_top_k(weights, params.top_k)
    last = np.partition(best, -params.top_k)[-params.top_k]
    if params.top_p >= 1.0:
        return float(last)
    kept = best[best >= last]
    return _end_of_nucleus(kept, 0.0, params.top_p * float(kept.sum(dtype=np.float64)))[0]


def _likely_top_k(weights: _Weights, k: int) -> _Weights:
    """Weights of a row [V] that include the k best: those from a sampled weight up, or all."""
    sample = _sample(weights)
    expected = k * len(sample) / len(weights)
    rank = int(_at_most(expected))
    if len(weights) < _WIDE or rank >= len(sample):
        return weights
    best = _taken(weights, weights >= np.partition(sample, -rank)[-rank])
    return best if len(best) >= k else weights


def _nucleus_floor(weights: Tensor, top_p: float) -> float:
    """The weight of the last of the most likely tokens of a row [V] whose mass first reaches top_p of the whole.

    A sample estimates a weight near the end of the nucleus. The mass from that weight up shows on which side the end
    lies and how far, so only the tokens between are sorted. If the end is not among them, the whole row is sorted.
    """
    total = float(weights.sum())
    wanted = top_p * total
    if len(weights) >= _WIDE and math.isfinite(total):
        near, before = _near_end(weights, total, wanted)
        last, reached = _end_of_nucleus(near, before, wanted)
        if before < wanted and reached:
            return last
    return _end_of_nucleus(weights.numpy(), 0.0, wanted)[0]


def _near_end(weights: Tensor, total: float, wanted: float) -> tuple[_Weights, float]:
    """Weights of a row [V] among which the nucleus ends by a sample's estimate, and the mass of the better weights.

    The nucleus leaves out many unlikely tokens, whose mass a sample estimates well. The few likely tokens, which the
    sample may lack, do not matter.
    """
    row = weights.numpy()
    sample = np.sort(_sample(row))
    mass = sample.cumsum(dtype=np.float64) * (len(row) / len(sample))
    guess = min(int(np.searchsorted(mass, total - wanted)), len(sample) - 1)
    over = float(torch.threshold(weights, float(sample[guess]), 0.0).sum())
    missing = wanted - over
    end = int(np.searchsorted(mass, mass[guess] - missing))
    if missing > 0.0:
        worst = guess - int(_at_most(guess - end))
        return _taken(row, (row >= (sample[worst] if worst >= 0 else 0.0)) & (row <= sample[guess])), over
    best = guess + int(_at_most(end - guess))
    near = _taken(row, (row > sample[guess]) & (row <= (sample[best] if best < len(sample) else 1.0)))
    return near, over - float(near.sum(dtype=np.float64))


def _at_most(expected: float) -> float:
    """Upper bound of the number of sampled weights where `expected` are expected."""
    return expected + _ERRORS * math.sqrt(expected) + 8


def _sample(weights: _Weights) -> _Weights:
    return weights[:: max(1, len(weights) // _SAMPLE)]


def _taken(weights: _Weights, wanted: NDArray[np.bool_]) -> _Weights:
    """The weights at which `wanted` is true; indexing by a mask would branch at each token."""
    return weights.take(np.flatnonzero(wanted))


def _end_of_nucleus(weights: _Weights, before: float, wanted: float) -> tuple[float, bool]:
    """The weight at which the mass of `weights`, added to a mass of `before`, reaches `wanted`, and whether it does.

    NaN without any weight.
    """
    if not len(weights):
        return math.nan, False
    best = np.sort(weights)[::-1].astype(np.float64)
    mass = before + best.cumsum()
    inside = int((mass - best < wanted).sum())
    return float(best[max(inside - 1, 0)]), bool(mass[-1] >= wanted)


def _sorted_floors(weights: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The least weight that each row [N, V] keeps, [N, 1]."""
    vocab_size = weights.shape[-1]
    k, top_p, least = to_device(
        weights.device,
        torch.tensor([[min(each.top_k, vocab_size) or vocab_size] for each in params], dtype=torch.int64),
        torch.tensor([[each.top_p if each.top_p < 1.0 else math.inf] for each in params], dtype=torch.float64),
        torch.tensor([[each.min_p] for each in params], dtype=torch.float64),
    )
    best = weights.sort(descending=True).values
    kept = best >= best.gather(-1, k - 1)  # with the tokens that tie with the k-th
    mass = best.double() * kept
    inside = kept & (mass.cumsum(-1) - mass < top_p * mass.sum(-1, keepdim=True))
    last = best.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_min_(0))  # no weight of a NaN row is inside
    return torch.maximum(last, least.to(weights.dtype))
