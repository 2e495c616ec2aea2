"""How many tokens to draft: the speed-up of a round, and the estimate of α.

α is the chance that a draft token is accepted. Times are in decode steps of the target: c is the time of a draft step,
r that of the network round trip, and β that of one more verified token.
"""

from dataclasses import dataclass, replace


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round commits: E = (1 - α^(γ+1)) / (1 - α) (Leviathan et al., arXiv 2211.17192, eq. 1)."""
    if alpha >= 1.0:
        return gamma + 1.0
    return (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, c: float, r: float = 0.0, beta: float = 0.0) -> float:
    """Tokens per target step against plain decoding: S = E / (1 + r + γ(c + β)); γ = 0 asks no drafter and gives 1."""
    if gamma == 0:
        return 1.0
    return expected_tokens(alpha, gamma) / (1.0 + r + gamma * (c + beta))


def best_gamma(alpha: float, c: float, r: float = 0.0, beta: float = 0.0, limit: int = 16) -> int:
    """The γ in 0..limit with the greatest speed-up, the smallest one of a tie."""
    return max(range(limit + 1), key=lambda gamma: speedup(alpha, gamma, c, r, beta))


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """α as accepted / (accepted + rejected), with a prior, and with less weight for older rounds.

    Tokens after the first rejection are never judged, so accepted / drafted would be too low.
    """

    prior: float = 0.7
    """α before anything is seen."""
    weight: float = 4.0
    """How many judged tokens the prior counts for."""
    decay: float = 0.98
    """Factor on the earlier counts in each new round."""
    accepted: float = 0.0
    """Accepted tokens, older rounds weighted less."""
    rejected: float = 0.0
    """Rejected tokens, older rounds weighted less."""

    @property
    def alpha(self) -> float:
        """The estimate, in [0, 1]."""
        return (self.accepted + self.weight * self.prior) / (self.accepted + self.rejected + self.weight)

    def observed(self, drafted: int, accepted: int) -> "AcceptanceEstimate":
        """The estimate after one more round; a round without drafts only lowers the weight of earlier ones."""
        rejections = 1 if accepted < drafted else 0
        return replace(
            self,
            accepted=self.accepted * self.decay + accepted,
            rejected=self.rejected * self.decay + rejections,
        )
