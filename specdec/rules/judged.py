"""Evidence for the verdict on one draft token."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """The numbers that decide the verdict on one draft token; None for a number that the mode does not use."""

    p: float
    """Probability of the token under the target."""
    q: float | None = None
    """Probability of the token under q̂."""
    u: float | None = None
    """The uniform number of its position."""
    threshold: float | None = None
    """Upper bound of u for acceptance: min(1, p/(ℓ·q)) in token rejection; the h of Algorithm 2 in mode block."""
    h_norm: float | None = None
    """Normalized entropy of the drafter's distribution, where γ is chosen by entropy."""
    gamma: int | None = None
    """γ after this draft step, where γ is chosen by entropy."""
