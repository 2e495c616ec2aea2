"""Losses of the distillation: forward KL first, then total variation, which is 1 − α."""

import torch
from torch import Tensor

SHARP_TEMPERATURE = 0.3
"""Temperature at which total variation approximates the disagreement of both argmaxes."""


def blend(progress: float) -> Tensor:
    """Return [3] weights of the divergences: only KL in the first third, mainly total variation in the second half."""
    variation = min(0.9, max(0.0, 0.9 * (6 * progress - 2)))
    return torch.tensor([1 - variation, variation, variation])
