"""How sure a model is of a token that it drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Certainty:
    """What a distribution and the token drawn from it say."""

    entropy: float
    """H_norm: entropy of the distribution over the logarithm of how many ids it allows, in [0, 1]."""
    confidence: float
    """Probability of the token."""


def certainties(q: Tensor, tokens: Sequence[int]) -> list[Certainty]:
    """The certainty of each row; `q` [B, V], and one token of each row."""
    entropy = torch.special.entr(q).sum(1) / (q > 0.0).sum(1).clamp_min(2).log()
    drawn = q.gather(1, torch.tensor(tokens, device=q.device)[:, None])[:, 0]
    return [Certainty(*each) for each in zip(entropy.tolist(), drawn.tolist(), strict=True)]
