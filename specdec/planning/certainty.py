"""Certainty of a model about a token that it drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Certainty:
    """Entropy of a distribution and probability of the token drawn from it."""

    entropy: float
    """H_norm: entropy of the distribution divided by the logarithm of its number of possible ids, in [0, 1]."""
    confidence: float
    """Probability of the token."""


def certainties(q: Tensor, tokens: Sequence[int]) -> list[Certainty]:
    """The certainty of each row; `q` [B, V], and one token of each row."""
    entropy = torch.special.entr(q).sum(1) / (q > 0.0).sum(1).clamp_min(2).log()
    drawn = q.gather(1, torch.tensor(tokens, device=q.device)[:, None])[:, 0]
    return [Certainty(*each) for each in zip(entropy.tolist(), drawn.tolist(), strict=True)]
