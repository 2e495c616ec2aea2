"""The one function from logits to a distribution, and the draw from it, for target, drafter and plain decoding alike.

Order: logit_bias, allowed and banned ids, min_tokens, repetition, presence and frequency penalties, temperature, top-k,
top-p, min-p. Each filter works on the distribution that the filters before it have left. A filter keeps every token
that ties with the last one it keeps, and always at least the most likely token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.rules.edits import LogitEdits
from specdec.rules.params import SamplingParams
from specdec.rules.transfer import to_device

_NUCLEUS_HEAD = 256
"""Number of most likely tokens among which a nucleus is searched first, before more of the vocabulary is sorted."""


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a row, which penalties count."""

    prompt: Sequence[int] = ()
    """The tokens of the prompt."""
    output: Sequence[int] = ()
    """The committed output, then the draft tokens before this row."""


def probabilities(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """Turn logits [N, V] into distributions [N, V]; the logits are not changed.

    Returns:
        Distributions, float32, or float64 for float64 logits. No row depends on the parameters of another. Temperature
        0 gives a one-hot row on the argmax, the lowest id of a tie. A row that is NaN, infinite or masked everywhere
        becomes NaN: it is an error only for the caller that draws from it.

    Raises:
        InternalError: the arguments differ in length.
        TokenOutOfRange: a history or a bias names an id outside V.
    """
    if not len(logits) == len(params) == len(histories):
        raise InternalError(f"{len(logits)} rows of logits, {len(params)} params, {len(histories)} histories")
    scores = logits if logits.dtype == torch.float64 else logits.float()
    scores = _edited(scores, params, histories)
    top = scores.amax(-1, keepdim=True)
    sampled = [row for row, wanted in enumerate(params) if wanted.temperature > 0.0]
    if len(sampled) == len(params):
        return _softmax(scores - top, params)
    p = torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    p[:, :1] += top - top  # adds 0, or NaN in a row that has no distribution
    if sampled:
        (drawn,) = to_device(scores.device, torch.tensor(sampled))
        p[drawn] = _softmax(scores[drawn] - top[drawn], [params[row] for row in sampled])
    return p


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Draw an id for each row, int64 [N], by the inverse CDF of p [N, V] at u [N]; p may be unnormalised.

    An id of probability 0 is never drawn.
    """
    cdf = p.double().cumsum(-1)
    # An impossible id is never drawn, however the target is rounded.
    cdf = cdf.masked_fill_(p <= 0, -1.0)
    total = cdf.amax(-1)
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(u * total, below)
    return (cdf > target[:, None]).byte().argmax(-1)


def _edited(scores: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """The scores after bias, masks and penalties; a copy if there are any."""
    rows = [row for row, wanted in enumerate(params) if wanted.needs_history or _rules_out(wanted)]
    if not rows:
        return scores
    edits = LogitEdits(scores.shape[-1])
    for row in rows:
        edits.add(row, params[row], histories[row].prompt, histories[row].output)
    scores = scores.clone(memory_format=torch.contiguous_format)
    edits.apply(scores)
    return scores


def _rules_out(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.allowed_token_ids or params.banned_token_ids)


def _softmax(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, filters and softmax; each best score is 0, so a tiny temperature cannot overflow."""
    temperatures = [wanted.temperature for wanted in params]
    if any(temperature != 1.0 for temperature in temperatures):
        (divisors,) = to_device(scores.device, torch.tensor(temperatures, dtype=torch.float64))
        scores = scores / divisors.to(scores.dtype).clamp_min_(torch.finfo(scores.dtype).tiny)[:, None]
    return _filtered(scores, params).softmax(-1)


def _filtered(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Mask what top-k, top-p and min-p leave out; each filter is a lowest score to keep, so ties stay together."""
    top_k = {row: wanted.top_k for row, wanted in enumerate(params) if 0 < wanted.top_k < scores.shape[-1]}
    top_p = {row: wanted.top_p for row, wanted in enumerate(params) if wanted.top_p < 1.0}
    # The best score is 0, so the threshold min_p · max p is ln min_p.
    min_p = {row: math.log(wanted.min_p) for row, wanted in enumerate(params) if wanted.min_p > 0.0}
    if not (top_k or top_p or min_p):
        return scores
    floor = torch.full_like(scores[:, :1], -math.inf)
    k_rows, k, p_rows, p, m_rows, least = to_device(scores.device, *_listed(top_k), *_listed(top_p), *_listed(min_p))
    if top_k:
        floor[k_rows] = _top_k_floor(_some(scores, k_rows), k.long(), max(top_k.values()))
    if top_p:
        mine = _some(scores, p_rows)
        left = mine.masked_fill(mine < floor[p_rows], -math.inf)
        floor[p_rows] = torch.maximum(floor[p_rows], _top_p_floor(left, p))
    if min_p:
        floor[m_rows] = torch.maximum(floor[m_rows], least.to(scores.dtype))
    return scores.masked_fill(scores < floor, -math.inf)


def _listed(values: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """The row numbers, int64 [n], and the value of each, float64 [n, 1]."""
    rows, numbers = list(values), list(values.values())
    return torch.tensor(rows, dtype=torch.int64), torch.tensor(numbers, dtype=torch.float64)[:, None]


def _some(scores: Tensor, rows: Tensor) -> Tensor:
    """The given rows, which are ascending; all of them are returned without a copy."""
    return scores if len(rows) == len(scores) else scores[rows]


def _top_k_floor(scores: Tensor, k: Tensor, most: int) -> Tensor:
    """The k-th best score of each row [n, 1], for k [n, 1] of at most `most`."""
    return scores.topk(most).values.gather(-1, k - 1)


def _top_p_floor(scores: Tensor, top_p: Tensor, head: int = _NUCLEUS_HEAD) -> Tensor:
    """The score of the last token of each nucleus [n, 1]: the fewest likely tokens whose mass reaches top_p [n, 1].

    On the host the `head` most likely tokens are searched first, and more of them when the nucleus is longer. On a
    device it would take a device sync to know that, so the whole vocabulary is sorted at once.
    """
    head = min(head, scores.shape[-1]) if scores.is_cpu else scores.shape[-1]
    best = scores.topk(head).values if head < scores.shape[-1] else scores.sort(descending=True).values
    mass = (best - scores.logsumexp(-1, keepdim=True)).exp().double()
    before = mass.cumsum(-1) - mass
    kept = (before < top_p).sum(-1, keepdim=True)
    floor = best.gather(-1, (kept - 1).clamp_min_(0))
    if head == scores.shape[-1]:
        return floor
    longer = (kept[:, 0] == head).nonzero()[:, 0]
    if len(longer):
        floor[longer] = _top_p_floor(scores[longer], top_p[longer], 16 * head)
    return floor
