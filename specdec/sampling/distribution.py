"""The function from logits to a distribution, and the draw from it, for target, drafter and plain decoding alike.

Order: logit_bias, allowed and banned ids, bad words, min_tokens, the grammar, repetition, presence and frequency
penalties, temperature, top-k, top-p, min-p. Each filter works on the distribution left by the filters before it. A
filter keeps every token that ties with the last one it keeps, and always the most likely token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.errors import InternalError
from specdec.sampling.edits import LogitEdits
from specdec.sampling.filters import distributions
from specdec.sampling.params import SamplingParams
from specdec.sampling.transfer import to_device


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a row, which penalties count, and the grammar's mask after them."""

    prompt: Sequence[int] = ()
    """The tokens of the prompt."""
    output: Sequence[int] = ()
    """The committed output, then the draft tokens before this row."""
    allowed: bytes | None = None
    """The mask of the ids that may follow, as in `specdec.sampling.grammar`; None without a grammar."""


def probabilities(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """Turn logits [N, V] into distributions [N, V]; the logits are not changed.

    Returns:
        Distributions, float32, or float64 for float64 logits. No row depends on the parameters of another. Temperature
        0 gives a one-hot row on the argmax, the lowest id of a tie. A row that is NaN, infinite or masked everywhere
        becomes NaN, which is an error only for a caller that draws from it.

    Raises:
        InternalError: the arguments differ in length.
        TokenOutOfRange: a history or a bias names an id outside V.
    """
    if not len(logits) == len(params) == len(histories):
        raise InternalError(f"{len(logits)} rows of logits, {len(params)} params, {len(histories)} histories")
    scores = logits if logits.dtype == torch.float64 else logits.float()
    scores = _edited(scores, params, histories)
    sampled = [row for row, wanted in enumerate(params) if wanted.temperature > 0.0]
    if len(sampled) == len(params):
        return distributions(scores, params)
    p = torch.zeros_like(scores).scatter_(-1, argmax(scores)[:, None], 1.0)
    top = scores.amax(-1, keepdim=True)
    p[:, :1] += top - top  # adds 0, or NaN in a row that has no distribution
    if sampled:
        (drawn,) = to_device(scores.device, torch.tensor(sampled))
        p[drawn] = distributions(scores[drawn], [params[row] for row in sampled])
    return p


def certain_tokens(
    logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]
) -> tuple[Tensor, Tensor]:
    """The tokens that `probabilities` makes certain at temperature 0, on the host, without the distributions.

    Arguments as in `probabilities`.

    Returns:
        The id of each row, int64 [N], and its mass, float64 [N]: 1, or NaN for a row that has no distribution.
    """
    scores = _edited(logits if logits.dtype == torch.float64 else logits.float(), params, histories).numpy()
    best = scores.argmax(-1)
    top = scores[np.arange(len(best)), best]  # the first NaN where there is one
    return torch.from_numpy(best), torch.from_numpy(np.where(np.isfinite(top), 1.0, np.nan))


def argmax(scores: Tensor) -> Tensor:
    """The best id of each row [N, V], int64 [N], the lowest id of a tie."""
    if scores.is_cpu:
        return torch.from_numpy(scores.numpy().argmax(-1))  # faster than PyTorch's on the host
    return scores.argmax(-1)


def sample(p: Tensor, u: Tensor) -> Tensor:
    """Draw an id for each row, int64 [N], by the inverse CDF of p [N, V] at u [N]; p may be unnormalised.

    An id of probability 0 is never drawn.
    """
    cdf = p.double().cumsum(-1)
    # A parallel sum may decrease where p is 0, so an impossible id could be the first above the target.
    total = cdf[:, -1] if p.is_cpu else cdf.masked_fill_(p <= 0, -1.0).amax(-1)
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(u * total, below)[:, None]
    if not p.is_cpu:
        return (cdf > target).byte().argmax(-1)
    return torch.searchsorted(cdf, target, right=True)[:, 0]


def _edited(scores: Tensor, params: Sequence[SamplingParams], histories: Sequence[History]) -> Tensor:
    """The scores after bias, masks and penalties: a copy if any apply, else `scores`."""
    rows = [row for row, wanted in enumerate(params) if wanted.needs_history or _rules_out(wanted)]
    masks = {row: history.allowed for row, history in enumerate(histories) if history.allowed is not None}
    if not rows and not masks:
        return scores
    edits = LogitEdits(scores.shape[-1])
    for row in rows:
        edits.add(row, params[row], histories[row].prompt, histories[row].output)
    for row, allowed in masks.items():
        edits.mask(row, allowed)
    scores = scores.clone(memory_format=torch.contiguous_format)
    edits.apply(scores)
    return scores


def _rules_out(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.allowed_token_ids or params.banned_token_ids or params.bad_words)
