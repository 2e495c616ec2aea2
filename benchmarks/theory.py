"""What Leviathan et al. (arXiv 2211.17192) predict, for the table that holds it against what was measured."""

from specdec.gamma import expected_tokens, speedup

__all__ = ["acceptance", "expected_tokens", "operations_factor", "speedup"]


def operations_factor(alpha: float, gamma: int, c_ops: float) -> float:
    """Arithmetic operations per token against plain decoding, Theorem 3.11: (1-α)(γĉ+γ+1) / (1-α^(γ+1)).

    Args:
        alpha: acceptance.
        gamma: draft length.
        c_ops: ĉ, operations of a draft step over those of a target step, per token.
    """
    return (gamma * c_ops + gamma + 1.0) / expected_tokens(alpha, gamma)


def acceptance(rounds: int, accepted: int, gamma: int) -> float:
    """The α at which rounds of γ drafts keep as many as these did: E(α, γ) - 1 = accepted / rounds.

    A round in which the drafter had no guess counts as one whose first draft was rejected.

    Args:
        rounds: at least one.
        accepted: drafts kept in all of them.
        gamma: draft length.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, gamma) - 1.0 < accepted / rounds
        low, high = (middle, high) if enough else (low, middle)
    return (low + high) / 2
