"""Predictions of Leviathan et al. (arXiv 2211.17192), for the table that compares them with measurements."""

import math

from torch import Tensor

from specdec.planning.gamma import expected_tokens, operations_factor, speedup

__all__ = ["ahead", "divergence", "expected_tokens", "operations_factor", "oracle", "speedup"]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """D_LK(p, q) = Σ |p - M| with M = (p + q) / 2, Definition 3.2; 1 - D_LK is the acceptance rate β (Theorem 3.5)."""
    return (p - (p + q) / 2).abs().sum(-1)


def oracle(alpha: float, c: float, beta: float = 0.0) -> float:
    """The most that drafts could bring, §3.5: each round drafts exactly the tokens that will be accepted.

    Those are α / (1 - α) on average, and the round commits one more.
    """
    if alpha >= 1.0:
        return math.inf if c + beta <= 0.0 else 1.0 / (c + beta)
    accepted = alpha / (1.0 - alpha)
    return (1.0 + accepted) / (1.0 + accepted * (c + beta))


def ahead(alpha: float, gamma: int, c: float, r: float = 0.0, beta: float = 0.0) -> float:
    """Tokens per target step where the drafter drafts on, elsewhere, while the target verifies.

    A round whose drafts are all kept, and whose last token was the next draft too (α^(γ+1)), waits only for what of the
    next draft is not done when its pass is.
    """
    drafting, verifying = r + gamma * c, 1.0 + gamma * beta
    hit = alpha ** (gamma + 1)
    waiting = (1.0 - hit) * drafting + hit * max(drafting - verifying, 0.0)
    return expected_tokens(alpha, gamma) / (verifying + waiting)
