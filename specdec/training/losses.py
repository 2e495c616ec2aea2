"""Losses of the distillation: forward KL first, then total variation, which is 1 − α."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

SHARP_TEMPERATURE = 0.3
"""Temperature at which total variation approximates the disagreement of both argmaxes."""
_LEAST = 1e-30
"""Least probability whose logarithm is taken."""


def blend(progress: float) -> Tensor:
    """Return [3] weights of the divergences: only KL in the first third, mainly total variation in the second half."""
    variation = min(0.9, max(0.0, 0.9 * (6 * progress - 2)))
    return torch.tensor([1 - variation, variation, variation])


def divergence_of(ids: Tensor, log_probs: Tensor, places: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the means over N tokens of forward KL without its constant, total variation, and
    sharp total variation.

    Args:
        ids: the target's most likely ids for each token, [N, k].
        log_probs: logarithms of their probabilities, [N, k].
        places: column of each id in `logits`; -1 for ids outside the head.
        logits: logits of the drafter, float32 [N, head].
        weights: of the three divergences, [3].
    """
    at = places[ids.long()]
    found: Tensor = _Divergence.apply(logits, at, log_probs.float(), weights.tolist())  # type: ignore[no-untyped-call]
    return found


class _Divergence(Function):
    """The divergence with its gradient in closed form, which takes fewer passes over the vocabulary.

    With p and q at the target's ids, and a = q where q < p, else 0: the gradient of KL is q·Σp - p, and that of total
    variation q·Σa - a.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, at: Tensor, log_p: Tensor, weights: list[float]) -> Tensor:
        known, at, count = at >= 0, at.clamp(min=0), len(logits)
        kl, variation, sharp = weights
        p, q = log_p.exp() * known, logits.softmax(-1)
        own = q.gather(-1, at)
        under = own.where(own < p, 0)
        loss = kl * -(p * own.clamp(min=_LEAST).log()).sum() + variation * (count - torch.minimum(p, own).sum())
        pull = kl * p + variation * under
        slope = q.mul_(pull.sum(-1, keepdim=True))
        if sharp:
            p, q = (log_p / SHARP_TEMPERATURE).softmax(-1) * known, (logits / SHARP_TEMPERATURE).softmax(-1)
            own = q.gather(-1, at)
            under = own.where(own < p, 0) * (sharp / SHARP_TEMPERATURE)
            loss = loss + sharp * (count - torch.minimum(p, own).sum())
            slope.addcmul_(q, under.sum(-1, keepdim=True))
            pull = pull + under
        ctx.save_for_backward(slope.scatter_add_(-1, at, -pull))
        return loss / count

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope.mul_(given[0] / len(slope)), None, None, None
