"""Predictions of Leviathan et al. (arXiv 2211.17192), for the table that compares them with measurements."""

import math

from specdec.planning.gamma import expected_tokens, speedup

__all__ = ["ahead", "expected_tokens", "operations_factor", "oracle", "speedup"]


def operations_factor(alpha: float, gamma: int, c_ops: float) -> float:
    """Arithmetic operations per token against plain decoding, Theorem 3.11: (1-α)(γĉ+γ+1) / (1-α^(γ+1)).

    Args:
        alpha: acceptance.
        gamma: draft length.
        c_ops: ĉ, operations of a draft step over those of a target step, per token.
    """
    return (gamma * c_ops + gamma + 1.0) / expected_tokens(alpha, gamma)


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
