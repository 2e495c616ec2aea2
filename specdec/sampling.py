"""The one function from logits to a distribution, and the draw from it; target, drafter and plain decoding share both.

Order: logit_bias, allowed and banned ids, min_tokens, repetition, presence and frequency penalties, temperature, top-k,
top-p, min-p. Each filter sees the distribution the filters before it left. A filter keeps every token that ties with
the last one it keeps, and always at least the most likely token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import InternalError, NoDistribution, TokenOutOfRange
from specdec.params import SamplingParams

_NUCLEUS_HEAD = 256
"""Tokens looked at before a nucleus is worth sorting the whole vocabulary for."""

_LEAST_REPETITION_PENALTY = 1e-6
"""Dividing by less could overflow to infinity, which is no distribution."""


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a row: what penalties count."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    """Committed output, then the drafts in flight before this row."""


def probabilities(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """Turn logits [N, V] into distributions [N, V]; the logits are left as they are.

    Returns:
        float32, or float64 for float64 logits. A row is the same whatever the other rows ask for. Temperature 0 is
        one-hot on the argmax, the lowest id of several.

    Raises:
        NoDistribution: a row is NaN, infinite or masked throughout.
        InternalError: the arguments differ in length.
        TokenOutOfRange: a history or a bias names an id outside V.
    """
    if not len(logits) == len(params) == len(histories):
        raise InternalError(f"{len(logits)} rows of logits, {len(params)} params, {len(histories)} histories")
    scores = logits if logits.dtype == torch.float64 else logits.float()
    scores = _edited(scores, params, histories)
    top = scores.amax(-1, keepdim=True)
    if not bool(top.isfinite().all()):
        rows = (~top.isfinite())[:, 0].nonzero()[:, 0].tolist()
        raise NoDistribution(f"logits are NaN, infinite or masked throughout in rows {rows}")
    sampled = [row for row, wanted in enumerate(params) if wanted.temperature > 0.0]
    if len(sampled) == len(params):
        return _softmax(scores - top, params)
    p = torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    if sampled:
        p[sampled] = _softmax(scores[sampled] - top[sampled], [params[row] for row in sampled])
    return p


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Draw an id per row, int64 [N], by the inverse CDF of p [N, V] at u [N]; p may be unnormalised.

    An id of zero probability is never drawn.
    """
    cdf = p.double().cumsum(-1)
    # Impossible ids can never be hit, wherever rounding puts the target.
    cdf = cdf.masked_fill_(p <= 0, -1.0)
    total = cdf.amax(-1)
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(u * total, below)
    return (cdf > target[:, None]).byte().argmax(-1)


def _edited(scores: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """Bias, masks and penalties; a copy when there are any."""
    rows = [row for row, wanted in enumerate(params) if wanted.needs_history or _rules_out(wanted)]
    if not rows:
        return scores
    scores = scores.clone()
    for row in rows:
        _add_bias(scores[row], params[row])
        _restrict(scores[row], params[row])
        _mask_ends(scores[row], params[row], histories[row])
        _penalise(scores[row], params[row], histories[row])
    return scores


def _rules_out(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.allowed_token_ids or params.banned_token_ids)


def _add_bias(row: Tensor, params: SamplingParams) -> None:
    if params.logit_bias:
        ids = _ids(list(params.logit_bias), row, "logit_bias")
        row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)


def _restrict(row: Tensor, params: SamplingParams) -> None:
    if params.allowed_token_ids:
        allowed = _ids(params.allowed_token_ids, row, "allowed_token_ids")
        kept = row[allowed]
        row.fill_(-math.inf)
        row[allowed] = kept
    row[_ids(params.banned_token_ids, row, "banned_token_ids")] = -math.inf


def _mask_ends(row: Tensor, params: SamplingParams, history: History) -> None:
    if len(history.output) < params.min_tokens:
        row[_ids(params.end_token_ids, row, "end_token_ids")] = -math.inf


def _penalise(row: Tensor, params: SamplingParams, history: History) -> None:
    """Repetition over prompt and output (CTRL, arXiv 1909.05858), then presence and frequency over the output."""
    output = _ids(history.output, row, "tokens")
    if params.repetition_penalty != 1.0:
        seen = torch.cat([_ids(history.prompt, row, "tokens"), output])
        scores, penalty = row[seen], max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)
        row[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if params.presence_penalty or params.frequency_penalty:
        used, counts = torch.unique(output, return_counts=True)
        row[used] -= params.presence_penalty + params.frequency_penalty * counts.to(row.dtype)


def _ids(tokens: Sequence[int], row: Tensor, param: str) -> Tensor:
    """Token ids as an index into `row`, checked."""
    ids = torch.tensor(tokens, dtype=torch.int64, device=row.device)
    if len(tokens) and not 0 <= int(ids.min()) <= int(ids.max()) < len(row):
        raise TokenOutOfRange(f"{param} holds an id outside the vocabulary of {len(row)}", param)
    return ids


def _softmax(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature, filters and softmax; each row's best score is 0, so a tiny temperature cannot overflow."""
    temperatures = [wanted.temperature for wanted in params]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / _column(temperatures, scores).clamp_min_(torch.finfo(scores.dtype).tiny)
    return _filtered(scores, params).softmax(-1)


def _filtered(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Mask what top-k, top-p and min-p take out; each is a least score to keep, so ties stay together."""
    top_k = {row: wanted.top_k for row, wanted in enumerate(params) if 0 < wanted.top_k < scores.shape[-1]}
    top_p = {row: wanted.top_p for row, wanted in enumerate(params) if wanted.top_p < 1.0}
    min_p = {row: wanted.min_p for row, wanted in enumerate(params) if wanted.min_p > 0.0}
    if not (top_k or top_p or min_p):
        return scores
    floor = torch.full_like(scores[:, :1], -math.inf)
    if top_k:
        rows = list(top_k)
        floor[rows] = _top_k_floor(scores[rows], list(top_k.values()))
    if top_p:
        rows = list(top_p)
        left = scores[rows].masked_fill(scores[rows] < floor[rows], -math.inf)
        floor[rows] = torch.maximum(floor[rows], _top_p_floor(left, _column(list(top_p.values()), left).double()))
    if min_p:
        rows = list(min_p)
        # The best score is 0, so the threshold min_p · max p is ln min_p.
        floor[rows] = torch.maximum(floor[rows], _column([math.log(least) for least in min_p.values()], scores))
    return scores.masked_fill(scores < floor, -math.inf)


def _top_k_floor(scores: Tensor, k: Sequence[int]) -> Tensor:
    """The k-th best score of each row, [n, 1]."""
    best = scores.topk(max(k)).values
    return best.gather(-1, torch.tensor(k, device=scores.device)[:, None] - 1)


def _top_p_floor(scores: Tensor, top_p: Tensor, head: int = _NUCLEUS_HEAD) -> Tensor:
    """The score, [n, 1], of the last of the most likely tokens whose mass first reaches top_p [n, 1]."""
    head = min(head, scores.shape[-1])
    best = scores.topk(head).values
    mass = (best - scores.logsumexp(-1, keepdim=True)).exp().double()
    before = mass.cumsum(-1) - mass
    kept = (before < top_p).sum(-1, keepdim=True)
    floor = best.gather(-1, kept - 1)
    longer = (kept[:, 0] == head).nonzero()[:, 0]
    if head < scores.shape[-1] and len(longer):
        floor[longer] = _top_p_floor(scores[longer], top_p[longer], 16 * head)
    return floor


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """One value per row, [n, 1]."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
