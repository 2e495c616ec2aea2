"""How many outcomes of a verdict chains are prepared for, by the number of drafts that it accepts.

A verdict accepts k drafts and adds one token. With a chance α that a draft is accepted, and a chance F^-r that none of
F guesses is the token that is added, F_k ∝ α^(k / (1 + r)) guesses are best behind k < γ drafts, and behind all of them
α^(γ / (1 + r)) · (1 - α)^(-1 / (1 + r)) (arXiv 2603.03251, theorem 12).
"""

from itertools import accumulate

_MISSES = 1.5
"""r: how fast guesses of one token get better with their number."""

_LEAST, _MOST = 0.1, 0.9
"""Acceptance that is believed: a few rounds can show any, and no outcome is to go without a guess for that."""


def fan_out(budget: int, gamma: int, alpha: float) -> list[int]:
    """The number of outcomes for each k in 0..γ; their sum is the budget."""
    root = 1.0 / (1.0 + _MISSES)
    alpha = min(max(alpha, _LEAST), _MOST)
    worth = [alpha ** (k * root) for k in range(gamma)] + [alpha ** (gamma * root) * (1.0 - alpha) ** -root]
    whole = sum(worth)
    ends = [round(budget * upto / whole) for upto in accumulate(worth)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
