"""How many tokens to draft: what a round is worth, the estimate of α, and the controllers that choose γ.

The unit of time is one decode step of the target: c = a draft step, r = the network round trip, β = one more verified
token.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

Source = float | Callable[[], float]
"""A cost, or where to read it."""

_MARGIN = 0.02
"""Relative gain in predicted speed-up worth a change of γ."""


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round commits: E = (1 - α^(γ+1)) / (1 - α) (Leviathan et al., arXiv 2211.17192, eq. 1)."""
    if alpha >= 1.0:
        return gamma + 1.0
    return (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def speedup(alpha: float, gamma: int, c: float, r: float = 0.0, beta: float = 0.0) -> float:
    """Tokens per target step against plain decoding: S = E / (1 + r + γ(c + β)); γ = 0 asks nobody and is 1."""
    if gamma == 0:
        return 1.0
    return expected_tokens(alpha, gamma) / (1.0 + r + gamma * (c + beta))


def best_gamma(alpha: float, c: float, r: float = 0.0, beta: float = 0.0, limit: int = 16) -> int:
    """The γ in 0..limit of the greatest speed-up, the least of several."""
    return max(range(limit + 1), key=lambda gamma: speedup(alpha, gamma, c, r, beta))


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """α as accepted / (accepted + rejections), with a prior, forgetting old rounds.

    Tokens after the first rejection were never judged, so accepted / drafted would be biased low.
    """

    prior: float = 0.7
    """α before anything is seen."""
    weight: float = 4.0
    """How many judged tokens the prior counts for."""
    decay: float = 0.98
    """What each round leaves of the evidence before it."""
    accepted: float = 0.0
    rejected: float = 0.0

    @property
    def alpha(self) -> float:
        """The estimate, in [0, 1]."""
        return (self.accepted + self.weight * self.prior) / (self.accepted + self.rejected + self.weight)

    def observed(self, drafted: int, accepted: int) -> "AcceptanceEstimate":
        """The estimate after one more round; a round without drafts only forgets."""
        rejections = 1 if accepted < drafted else 0
        return replace(
            self,
            accepted=self.accepted * self.decay + accepted,
            rejected=self.rejected * self.decay + rejections,
        )


class GammaController(Protocol):
    """Chooses γ for the next round of one session."""

    def gamma(self) -> int:
        """Tokens to draft next."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round."""


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """Always the same γ."""

    value: int

    def gamma(self) -> int:
        """Tokens to draft next."""
        return self.value

    def observe(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


class OptimalGamma:
    """The γ of the greatest predicted speed-up at the α seen and the costs of now.

    It moves only for a gain worth having, so that noise in α does not make γ flutter. At γ = 0 the evidence fades
    towards the prior, so a session that stopped drafting tries again later.
    """

    def __init__(
        self, c: Source, r: Source, beta: Source, limit: int, estimate: AcceptanceEstimate = AcceptanceEstimate()
    ) -> None:
        self._costs = (c, r, beta)
        self._limit = limit
        self.estimate = estimate
        self._current = self._best()

    def gamma(self) -> int:
        """Tokens to draft next."""
        best = self._best()
        if self._speedup(best) > self._speedup(self._current) * (1.0 + _MARGIN):
            self._current = best
        return self._current

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round."""
        self.estimate = self.estimate.observed(drafted, accepted)

    def _best(self) -> int:
        c, r, beta = map(_read, self._costs)
        return best_gamma(self.estimate.alpha, c, r, beta, self._limit)

    def _speedup(self, gamma: int) -> float:
        c, r, beta = map(_read, self._costs)
        return speedup(self.estimate.alpha, gamma, c, r, beta)


def _read(source: Source) -> float:
    return source() if callable(source) else source
