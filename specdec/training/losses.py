"""Losses of the distillation: forward KL first, then total variation, which is 1 − α."""

import torch
from torch import Tensor

SHARP_TEMPERATURE = 0.3
"""Temperature at which total variation approximates the disagreement of both argmaxes."""


def blend(progress: float) -> Tensor:
    """Return [3] weights of the divergences: only KL in the first third, mainly total variation in the second half."""
    variation = min(0.9, max(0.0, 0.9 * (6 * progress - 2)))
    return torch.tensor([1 - variation, variation, variation])


def divergences_of(ids: Tensor, log_probs: Tensor, places: Tensor, logits: Tensor) -> Tensor:
    """Return [3] means over N tokens: forward KL without its constant, total variation, sharp total variation.

    Args:
        ids: the target's most likely ids for each token, [N, k].
        log_probs: logarithms of their probabilities, [N, k].
        places: column of each id in `logits`; -1 for ids outside the head.
        logits: logits of the drafter, float32 [N, head].
    """
    at, log_p = places[ids.long()], log_probs.float()
    known, at = at >= 0, at.clamp(min=0)
    log_q = logits.log_softmax(-1).gather(-1, at)
    p, q = log_p.exp() * known, log_q.exp()
    sharp_p = (log_p / SHARP_TEMPERATURE).softmax(-1) * known
    sharp_q = (logits / SHARP_TEMPERATURE).softmax(-1).gather(-1, at)
    kl = -(p * log_q).sum(-1).mean()
    plain, sharp = (1 - torch.minimum(*each).sum(-1).mean() for each in ((p, q), (sharp_p, sharp_q)))
    return torch.stack((kl, plain, sharp))
