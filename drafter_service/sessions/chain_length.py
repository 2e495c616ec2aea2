"""Where a session's chain of drafts ends before the draft that was asked for is complete.

A chain ends behind a token that is part of it and that is sent with it, so it is decided by tokens that have been drawn
and kept. To leave out a token because of how it was drawn would change the distribution of the output.
"""

from specdec.planning.certainty import Certainty
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import DraftStep


class ChainLength:
    """The policy of one session, and the entropies that it has seen."""

    def __init__(self, policy: GammaPolicy) -> None:
        self.policy = policy
        self._entropy: float | None = None
        """Exponential moving average of H_norm, over all drafts of the session."""

    def step(self, gamma: int, certainty: Certainty) -> DraftStep | None:
        """Add the entropy of one more draft to the average; None unless γ is chosen by entropy.

        Args:
            gamma: most drafts that are asked for.
        """
        policy, earlier, newest = self.policy, self._entropy, min(certainty.entropy, 1.0)
        if policy.policy is not PolicyKind.EGAG:
            return None
        self._entropy = newest if earlier is None else policy.ema * earlier + (1.0 - policy.ema) * newest
        return DraftStep(newest, self._most(gamma, self._entropy))

    def ends(self, drafted: int, certainty: Certainty, step: DraftStep | None) -> bool:
        """Whether a chain of `drafted` tokens ends.

        Args:
            certainty: that of the last token.
            step: the value of `step` for that token.
        """
        return certainty.confidence < self.policy.min_confidence or (step is not None and drafted >= step.gamma)

    def _most(self, gamma: int, entropy: float) -> int:
        """γ = γ_min + (γ_max - γ_min)(1 - H_norm), rounded; γ_max is what is asked for."""
        return round(self.policy.min + (gamma - self.policy.min) * (1.0 - entropy))
