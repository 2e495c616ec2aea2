"""Where a session's chain of drafts ends before the draft that was asked for is complete.

A chain ends behind a token that is part of it and that is sent with it, so it is decided by tokens that have been drawn
and kept. To leave out a token because of how it was drawn would change the distribution of the output.
"""

from specdec.planning.certainty import Certainty
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind


class ChainLength:
    """The policy of one session, and the entropies that it has seen."""

    def __init__(self, policy: GammaPolicy) -> None:
        self.policy = policy
        self._entropy: float | None = None
        """Exponential moving average of H_norm, over all drafts of the session."""

    def ends(self, drafted: int, gamma: int, certainty: Certainty) -> bool:
        """Whether a chain of `drafted` tokens ends, of which `gamma` are asked for at most.

        Args:
            certainty: that of the last token.
        """
        policy, earlier = self.policy, self._entropy
        newest = certainty.entropy
        self._entropy = newest if earlier is None else policy.ema * earlier + (1.0 - policy.ema) * newest
        if certainty.confidence < policy.min_confidence:
            return True
        return policy.policy is PolicyKind.EGAG and drafted >= self._most(gamma, self._entropy)

    def _most(self, gamma: int, entropy: float) -> int:
        """γ = γ_min + (γ_max - γ_min)(1 - H_norm), rounded; γ_max is what is asked for."""
        return round(self.policy.min + (gamma - self.policy.min) * (1.0 - min(entropy, 1.0)))
