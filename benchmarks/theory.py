"""Predictions of Leviathan et al. (arXiv 2211.17192), for the table that compares them with measurements."""

import math

from torch import Tensor

from specdec.planning.gamma import expected_tokens, operations_factor, speedup

__all__ = ["ahead", "divergence", "expected_tokens", "operations_factor", "oracle", "speedup"]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """D_LK(p, q) = Σ |p - M| with M = (p + q) / 2, Definition 3.2. The acceptance rate β is 1 - D_LK (Theorem 3.5)."""
    return (p - (p + q) / 2).abs().sum(-1)


def oracle(alpha: float, c: float, beta: float = 0.0) -> float:
    """Return the largest possible speed-up, §3.5, in which each round drafts exactly the tokens that are accepted.

    These are α / (1 - α) on average, and the round commits one more token.
    """
    if alpha >= 1.0:
        return math.inf if c + beta <= 0.0 else 1.0 / (c + beta)
    accepted = alpha / (1.0 - alpha)
    return (1.0 + accepted) / (1.0 + accepted * (c + beta))


def ahead(alpha: float, gamma: int, c: float, r: float = 0.0, beta: float = 0.0) -> float:
    """Return the tokens per target step if the drafter continues on another device while the target verifies.

    If all drafts of a round are kept and its last token equals the next draft (α^(γ+1)), the next round waits only for
    the part of its draft that is unfinished at the end of the pass.
    """
    drafting, verifying = r + gamma * c, 1.0 + gamma * beta
    hit = alpha ** (gamma + 1)
    waiting = (1.0 - hit) * drafting + hit * max(drafting - verifying, 0.0)
    return expected_tokens(alpha, gamma) / (verifying + waiting)
