"""Draft length: the speed-up of a round, the estimate of α, and the controllers that choose γ.

α is the probability that a draft token is accepted. Times are in decode steps of the target: c is the time of a draft
step, r that of the network round trip, and β that of one more verified token.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

Cost = Callable[[], float]
"""Returns the current value of a time, in decode steps of the target."""

SESSION_WEIGHT = 8.0
"""Weight, in judged tokens, of the α of all sessions in the α of one session."""
_MARGIN = 0.02
"""Least relative gain in predicted speed-up that makes the controller change γ."""


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round commits: E = (1 - α^(γ+1)) / (1 - α) (Leviathan et al., arXiv 2211.17192, eq. 1)."""
    if alpha >= 1.0:
        return gamma + 1.0
    return (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, c: float, r: float = 0.0, beta: float = 0.0) -> float:
    """Tokens per target step relative to plain decoding: S = E / (1 + r + γ(c + β)); 1 for γ = 0."""
    if gamma == 0:
        return 1.0
    return expected_tokens(alpha, gamma) / (1.0 + r + gamma * (c + beta))


def least_speedup(alpha: float, c: float) -> float | None:
    """The speed-up (1 + α) / (1 + c) that some γ reaches (Corollary 3.9); None if α ≤ c: then possibly no γ pays."""
    return (1.0 + alpha) / (1.0 + c) if alpha > c else None


def operations_factor(alpha: float, gamma: int, c_ops: float) -> float:
    """Arithmetic operations per token relative to plain decoding, Theorem 3.11: (1-α)(γĉ+γ+1) / (1-α^(γ+1)).

    Args:
        alpha: acceptance rate.
        gamma: draft length.
        c_ops: ĉ, operations of a draft step divided by those of a target step, per token.
    """
    return (gamma * c_ops + gamma + 1.0) / expected_tokens(alpha, gamma)


def best_gamma(alpha: float, c: float, r: float = 0.0, beta: float = 0.0, limit: int = 16) -> int:
    """The γ in 0..limit with the greatest speed-up, the smallest one of a tie.

    From γ = 1 on, the speed-up has one peak: the gain flattens and the cost grows linearly.
    """
    peak, greatest = 0, 0.0
    for gamma in range(1, limit + 1):
        gain = speedup(alpha, gamma, c, r, beta)
        if gain <= greatest:
            break
        peak, greatest = gamma, gain
    return peak if greatest > 1.0 else 0


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """α of the judged drafts, with a prior, and with less weight for older rounds.

    A round counts by its accepted and rejected drafts or, if known, by Σ min(p, q̂) of the judged ones: the probability
    that each is accepted, which has the same mean and less variance (Corollary 3.6). Tokens after the first rejection
    are never judged, so accepted / drafted would be too low.
    """

    prior: float = 0.7
    """α before the first observation."""
    weight: float = 4.0
    """Weight of the prior, in judged tokens."""
    decay: float = 0.98
    """Factor applied to the earlier counts in each new round."""
    accepted: float = 0.0
    """Accepted tokens, counted or expected, older rounds weighted less."""
    rejected: float = 0.0
    """Rejected tokens, counted or expected, older rounds weighted less."""

    @property
    def alpha(self) -> float:
        """The estimate, in [0, 1]."""
        return self.over(self.prior)

    def over(self, prior: float) -> float:
        """The estimate with another prior."""
        return (self.accepted + self.weight * prior) / (self.accepted + self.rejected + self.weight)

    def observed(self, drafted: int, accepted: int, overlap: float | None = None) -> "AcceptanceEstimate":
        """The estimate after one more round; a round without drafts only lowers the weight of earlier rounds.

        Args:
            drafted: drafted tokens.
            accepted: accepted ones.
            overlap: Σ min(p, q̂), summed over the judged drafts; None if unknown.
        """
        judged = accepted + (1 if accepted < drafted else 0)
        kept = accepted if overlap is None else overlap
        return replace(
            self,
            accepted=self.accepted * self.decay + kept,
            rejected=self.rejected * self.decay + judged - kept,
        )


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """Always the same γ."""

    value: int

    def gamma(self) -> int:
        return self.value

    def observe(self, drafted: int, accepted: int, overlap: float | None = None) -> None:
        """Do nothing: γ is fixed."""


class EntropyGamma(FixedGamma):
    """Upper limit of γ for a session whose drafter ends each draft by entropy (EGAG)."""


class OptimalGamma:
    """The γ with the greatest predicted speed-up, from the estimated α and the current costs.

    γ changes only for a gain of at least 2%, so that noise in α does not make γ oscillate. At γ = 0 the estimate
    returns to the prior over time, so a session that stopped drafting tries again later.
    """

    def __init__(
        self,
        c: Cost,
        beta: Cost,
        limit: int,
        estimate: AcceptanceEstimate = AcceptanceEstimate(),
        r: Cost = lambda: 0.0,
    ) -> None:
        """Without `r`, `c` must include the time of the network."""
        self._c = c
        self._beta = beta
        self._r = r
        self._limit = limit
        self.estimate = estimate
        self._current = self._best()

    def gamma(self) -> int:
        """Tokens to draft next."""
        best = self._best()
        if self._speedup(best) > self._speedup(self._current) * (1.0 + _MARGIN):
            self._current = best
        return self._current

    def observe(self, drafted: int, accepted: int, overlap: float | None = None) -> None:
        """Learn from a round; arguments as in `AcceptanceEstimate.observed`."""
        self.estimate = self.estimate.observed(drafted, accepted, overlap)

    def _best(self) -> int:
        return best_gamma(self.estimate.alpha, self._c(), self._r(), self._beta(), limit=self._limit)

    def _speedup(self, gamma: int) -> float:
        return speedup(self.estimate.alpha, gamma, self._c(), self._r(), self._beta())


GammaController = FixedGamma | OptimalGamma
"""Chooses γ for the next round of one session."""
