"""Temperature and the filters top-k, top-p and min-p: each is a least weight to keep, so tokens that tie stay together.

The weights [N, V] of a row are its probabilities times what makes the best of them 1. On the host only a part of a
wide row is sorted: a sample of the row tells about which, and the rest is summed as a whole, to check that. On another
device the rows are sorted, because every look at a number would wait for the device. Where there is a C++ compiler, one
operator of the host does all of this.
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
"""Vocabulary from which it pays to look for the kept weights among the best only."""
_SAMPLE = 2048
"""Weights of a row, evenly spaced, that tell about where its best begin."""
_ERRORS = 4.0
"""Standard deviations by which a sample may be wrong; when it is wrong by more, all weights of the row are sorted."""

_Weights = NDArray[np.floating[Any]]


def distributions(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, which is above 0, filters and softmax to logits [N, V] after all edits."""
    if not scores.is_cpu or scores.dtype != torch.float32:  # no model's on the host
        return _by_torch(scores, params)
    limits = [[wanted.temperature, wanted.top_k, wanted.top_p, wanted.min_p] for wanted in params]
    p: Tensor = torch.ops.specdec.distributions(scores, torch.tensor(limits, dtype=torch.float64))
    return p


def distributions_on_host(scores: Tensor, limits: Tensor) -> Tensor:
    """What `distributions` returns, by PyTorch; `limits` are temperature, top-k, top-p and min-p, float64 [N, 4]."""
    rows = list(map(tuple, limits.tolist()))
    known = {row: SamplingParams(row[0], top_k=int(row[1]), top_p=row[2], min_p=row[3]) for row in dict.fromkeys(rows)}
    p = empty(scores.shape, scores.dtype)
    for part in parts(*scores.shape):
        p[part] = _by_torch(scores[part], [known[row] for row in rows[part]])
    return p


# `host_distributions.cpp` of the engine is an implementation for the CPU, where it can be had.
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
    """The distributions [N, V] of what the filters leave of logits after temperature."""
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
    """The distributions of rows that all have a filter; `scores`, of which each best is 0, become these."""
    weights = scores.exp_()
    _filter(weights, params)
    return weights.div_(weights.sum(-1, keepdim=True))


def _filters(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _filter(weights: Tensor, params: Sequence[SamplingParams]) -> None:
    """Set the weights [N, V] to 0 that their rows do not keep."""
    if weights.is_cpu:
        for row, wanted in zip(weights, params, strict=True):
            _filter_row(row, wanted)
    else:
        weights.mul_(weights >= _sorted_floors(weights, params))


def _filter_row(weights: Tensor, params: SamplingParams) -> None:
    """Set the weights [V] to 0 that one row does not keep."""
    row = weights.numpy()
    under = np.nextafter(row.dtype.type(_floor(weights, params)), row.dtype.type(-1.0))
    torch.threshold_(weights, float(under), 0.0)  # one look at each token, without a branch; NaN stays


def _floor(weights: Tensor, params: SamplingParams) -> float:
    """The least weight that one row [V] keeps."""
    if 0 < params.top_k < len(weights):
        return max(_top_k_floor(weights.numpy(), params), params.min_p)
    if params.top_p < 1.0:
        return max(_nucleus_floor(weights, params.top_p), params.min_p)
    return params.min_p


def _top_k_floor(weights: _Weights, params: SamplingParams) -> float:
    """The k-th best weight of a row [V], or the end of the nucleus among what is at least as good."""
    best = _likely_top_k(weights, params.top_k)
    last = np.partition(best, -params.top_k)[-params.top_k]
    if params.top_p >= 1.0:
        return float(last)
    kept = best[best >= last]
    return _end_of_nucleus(kept, 0.0, params.top_p * float(kept.sum(dtype=np.float64)))[0]


def _likely_top_k(weights: _Weights, k: int) -> _Weights:
    """Weights of a row [V] with the k best of them: those over a weight of the sample, or all."""
    sample = _sample(weights)
    expected = k * len(sample) / len(weights)
    rank = int(_at_most(expected))
    if len(weights) < _WIDE or rank >= len(sample):
        return weights
    best = _taken(weights, weights >= np.partition(sample, -rank)[-rank])
    return best if len(best) >= k else weights


def _nucleus_floor(weights: Tensor, top_p: float) -> float:
    """The weight of the last of the most likely tokens of a row [V] whose mass first reaches top_p of the whole.

    A sample tells a weight near the end of the nucleus. The mass over it shows on which side the end lies and how far,
    so only the tokens between are sorted. When the end is not among them, the whole row is sorted.
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
    """The weights of a row [V] among which, as far as a sample tells, a nucleus ends, and the mass of the better ones.

    What a nucleus leaves out are many unlikely tokens, whose mass a sample tells well. The few likely tokens, which it
    may lack, do not matter.
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
    """How many weights of a sample lie where so many are expected, at most."""
    return expected + _ERRORS * math.sqrt(expected) + 8


def _sample(weights: _Weights) -> _Weights:
    return weights[:: max(1, len(weights) // _SAMPLE)]


def _taken(weights: _Weights, wanted: NDArray[np.bool_]) -> _Weights:
    """The weights at which `wanted` is true; taking by a mask would branch at each token."""
    return weights.take(np.flatnonzero(wanted))


def _end_of_nucleus(weights: _Weights, before: float, wanted: float) -> tuple[float, bool]:
    """The weight with which the mass of `weights`, behind a mass of `before`, reaches `wanted`, and whether it does.

    Without any weight it is NaN.
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
    last = best.gather(-1, (inside.sum(-1, keepdim=True) - 1).clamp_min_(0))  # nothing of a row of NaN is inside
    return torch.maximum(last, least.to(weights.dtype))
