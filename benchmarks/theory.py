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


def acceptance(rounds: int, drafted: int, accepted: int, gamma: int) -> float:
    """α of `rounds` rounds of γ drafts: accepted over judged, a round that rejects having judged one more.

    Args:
        rounds: with a draft.
        drafted: tokens drafted in them.
        accepted: how many were kept.
        gamma: draft length; rounds cut short by the end of the output are few, and count by what they drafted.
    """
    if not drafted:
        return 0.0
    # Fixed-point of E[accepted] = Σ α^i: exact for independent positions, whatever the number of full acceptances.
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, gamma) - 1.0 < accepted / rounds
        low, high = (middle, high) if enough else (low, middle)
    return (low + high) / 2
