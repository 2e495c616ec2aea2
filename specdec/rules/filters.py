"""The filters top-k, top-p and min-p, in that order: each is a least score to keep, so tokens that tie stay together.

Scores [N, V] are logits after temperature whose best in each row is 0. On the host only a part of a wide row is sorted:
a sample of the row tells about which, and the rest is looked at as a whole, to check that. On another device the rows
are sorted, because every look at a number would wait for the device.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.rules.params import SamplingParams
from specdec.rules.transfer import to_device

_WIDE = 8192
"""Vocabulary from which it pays to look for the kept scores among the best only."""
_SAMPLE = 2048
"""Scores of a row, evenly spaced, that tell about where its best begin."""
_ERRORS = 4.0
"""Standard deviations by which a sample may be wrong; when it is wrong by more, all scores of the row are sorted."""


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
    best = _likely_top_k(scores, params.top_k)
    last = np.partition(best, -params.top_k)[-params.top_k]
    if params.top_p >= 1.0:
        return float(last)
    kept = best[best >= last]
    return _end_of_nucleus(kept, 0.0, params.top_p * float(np.exp(kept, dtype=np.float64).sum()))[0]


def _likely_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Scores of a row [V] with the k best of them: those over a score of the sample, or all."""
    sample = _sample(scores)
    expected = k * len(sample) / len(scores)
    rank = int(expected + _ERRORS * math.sqrt(expected)) + 8
    if len(scores) < _WIDE or rank >= len(sample):
        return scores
    best = _taken(scores, scores >= np.partition(sample, -rank)[-rank])
    return best if len(best) >= k else scores


def _nucleus_floor(scores: np.ndarray, weights: np.ndarray, top_p: float) -> float:
    """The score of the last of the most likely tokens of a row [V] whose mass first reaches top_p.

    A sample tells two scores between which the nucleus ends, and only the tokens between them are sorted. The mass of
    the better ones shows whether that was right; when it was not, the whole row is sorted.
    """
    total = float(weights.sum(dtype=np.float64))
    wanted = top_p * total
    if len(scores) >= _WIDE and math.isfinite(total):
        worst, best = _around_end(scores, total - wanted)
        better = scores > best
        before = float((weights * better).sum(dtype=np.float64)) if best < 0.0 else 0.0
        last, reached = _end_of_nucleus(_taken(scores, (scores >= worst) ^ better), before, wanted)
        if before < wanted and reached:
            return last
    return _end_of_nucleus(scores, 0.0, wanted)[0]


def _around_end(scores: np.ndarray, outside: float) -> tuple[float, float]:
    """Two scores between which, as far as a sample tells, a nucleus ends; the mass `outside` is what it leaves out.

    What a nucleus leaves out are many unlikely tokens, and a sample of them tells their mass with a known error. The
    few likely tokens, which it may lack, do not matter.
    """
    sample = np.sort(_sample(scores))
    weights = np.exp(sample, dtype=np.float64)
    mass = weights.cumsum() * (len(scores) / len(sample))
    left = weights[: np.searchsorted(mass, outside)]
    error = _ERRORS * math.sqrt(np.square(left).sum()) / left.sum() if left.any() else 1.0
    first, last = np.searchsorted(mass, (outside * (1.0 - error), outside * (1.0 + error))).tolist()
    return float(sample[min(first, len(sample) - 1)]), float(sample[last]) if last < len(sample) else 0.0


def _sample(scores: np.ndarray) -> np.ndarray:
    return scores[:: max(1, len(scores) // _SAMPLE)]


def _taken(scores: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The scores at which `wanted` is true; taking by a mask would branch at each token."""
    return scores.take(np.flatnonzero(wanted))


def _end_of_nucleus(scores: np.ndarray, before: float, wanted: float) -> tuple[float, bool]:
    """The score with which the mass of `scores`, behind a mass of `before`, reaches `wanted`, and whether it does.

    Without any score it is NaN.
    """
    if not len(scores):
        return math.nan, False
    best = np.sort(scores)[::-1]
    mine = np.exp(best, dtype=np.float64)
    mass = before + mine.cumsum()
    inside = int((mass - mine < wanted).sum())
    return float(best[max(inside - 1, 0)]), bool(mass[-1] >= wanted)


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
