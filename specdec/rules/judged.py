"""What a verdict says of one draft token."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """The numbers that the verdict on one draft token rests on; None is a number that the mode does not have."""

    p: float
    """Its probability under the target."""
    q: float | None = None
    """Its probability under q̂."""
    u: float | None = None
    """The uniform number of its position."""
    threshold: float | None = None
    """What u must be below: min(1, p/(ℓ·q)) in token rejection; in mode block the height of Algorithm 2."""
    h_norm: float | None = None
    """Normalized entropy of the drafter's distribution, where γ is chosen by entropy."""
    gamma: int | None = None
    """γ after this draft step, where γ is chosen by entropy."""
