"""What a round costs, measured: the c, r and β that the choice of γ needs, in steps of the target."""

import math
import time
from collections.abc import Callable

from specdec.rules.gamma import AcceptanceEstimate, FixedGamma, GammaController, OptimalGamma, expected_tokens
from verifier_service.batching.exploration import Exploring

_KEEP = 0.98
"""What each observation leaves of the weight of those before."""
_UNKNOWN_C = 0.1
"""c before anything is known of drafter or target."""
_UNKNOWN_BETA = 0.02
"""β before passes of different sizes were seen."""
_HALF_LIFE = 10.0
"""Seconds in which the memory of waits halves."""
_PRIOR_DRAFTS = 4.0
"""How many drafts a drafter's own account counts for."""
_SPREAD = 0.25
"""Variance of tokens per pass below which their marginal cost cannot be told from noise."""


class PassCost:
    """Seconds of a target pass as base + slope · tokens, by least squares that forget."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        self._rows = 0.0
        self._prompt_tokens = self._prompt_seconds = 0.0

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn from a pass of `rows` sessions and `tokens` tokens, without prompt chunks."""
        self._weight = self._weight * _KEEP + 1.0
        self._rows = self._rows * _KEEP + rows
        self._tokens = self._tokens * _KEEP + tokens
        self._seconds = self._seconds * _KEEP + seconds
        self._squares = self._squares * _KEEP + tokens * tokens
        self._products = self._products * _KEEP + tokens * seconds

    def observe_prompt(self, tokens: int, seconds: float) -> None:
        """Learn from a pass that computed `tokens` tokens, prompt chunks among them."""
        self._prompt_tokens = self._prompt_tokens * _KEEP + tokens
        self._prompt_seconds = self._prompt_seconds * _KEEP + seconds

    def prefill_rate(self) -> float:
        """Prompt tokens computed in a second; 0 before any prompt."""
        return self._prompt_tokens / self._prompt_seconds if self._prompt_seconds else 0.0

    def step(self) -> float | None:
        """Seconds of a plain pass over as many sessions as usual; None before any pass."""
        if self._weight == 0.0:
            return None
        mean, tokens, rows = (total / self._weight for total in (self._seconds, self._tokens, self._rows))
        slope = self._slope()
        if slope is None:
            return mean / (1.0 + _UNKNOWN_BETA * (tokens - rows) / rows)
        return max(mean - slope * (tokens - rows), 0.1 * mean)

    def beta(self) -> float:
        """Cost of one more token for every session of a usual pass, in plain passes."""
        step, slope = self.step(), self._slope()
        if step is None or slope is None:
            return _UNKNOWN_BETA
        return min(slope * self._rows / self._weight / step, 1.0)

    def _slope(self) -> float | None:
        if self._weight < 2.0:
            return None
        tokens, seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - tokens * tokens
        if variance < _SPREAD:
            return None
        return max((self._products / self._weight - tokens * seconds) / variance, 0.0)


class DraftCost:
    """Seconds a round waits for each of its drafts: what drafting ahead hides is not counted.

    What was seen fades within seconds towards what the drafters say of themselves, so that one that was slow is tried
    again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = self._drafts = 0.0
        self._seen = clock()

    def observe(self, drafts: int, waited: float) -> None:
        """Learn from a round that got `drafts` tokens after `waited` seconds."""
        self._fade(_KEEP)
        self._drafts += drafts
        self._waited += waited

    def per_token(self, prior: float | None) -> float | None:
        """Seconds a draft token costs; `prior` is what a drafter says its step takes. None when nothing is known."""
        self._fade(1.0)
        if prior is not None:
            return (self._waited + _PRIOR_DRAFTS * prior) / (self._drafts + _PRIOR_DRAFTS)
        return self._waited / self._drafts if self._drafts >= 1.0 else None

    def _fade(self, keep: float) -> None:
        now = self._clock()
        keep *= 0.5 ** ((now - self._seen) / _HALF_LIFE)
        self._seen = now
        self._drafts *= keep
        self._waited *= keep


class Costs:
    """The verifier's measurements, and the controllers that read them."""

    def __init__(self, gamma_max: int, draft_step: Callable[[], float | None]) -> None:
        """`draft_step` is what the drafters say a step of theirs takes, in seconds."""
        self.passes = PassCost()
        self.drafts = DraftCost()
        self._gamma_max = gamma_max
        self._draft_step = draft_step
        self._acceptance = AcceptanceEstimate(decay=0.995)

    def c(self) -> float:
        """One draft token in target steps; measured waits hold the network's round trip, so r is 0 beside it."""
        step = self.passes.step()
        seconds = self.drafts.per_token(self._draft_step())
        return _UNKNOWN_C if step is None or seconds is None else seconds / step

    def beta(self) -> float:
        """One more verified token in target steps."""
        return self.passes.beta()

    def worth_waiting(self, held: int, gamma: int) -> float:
        """Seconds of waiting for γ drafts instead of `held` at which they bring no more than plain steps in that time.

        A round of W + T(1 + γβ) seconds commits E(γ) tokens, and plain decoding one in T; so the rest of the draft is
        worth W = T(E(γ) - E(held) - (γ - held)β).
        """
        step = self.passes.step()
        if step is None:
            return math.inf
        more = expected_tokens(self.alpha, gamma) - expected_tokens(self.alpha, held)
        return max(step * (more - (gamma - held) * self.beta()), 0.0)

    def accepted(self, drafted: int, accepted: int) -> None:
        """Learn from any session's round; for people, each controller has an estimate of its own."""
        if drafted:
            self._acceptance = self._acceptance.observed(drafted, accepted)

    @property
    def alpha(self) -> float:
        """Acceptance over all sessions."""
        return self._acceptance.alpha

    def controller(self, gamma: int | None) -> GammaController:
        """A session's γ: fixed, or chosen by these costs when None."""
        if gamma is not None:
            return FixedGamma(gamma)
        return Exploring(OptimalGamma(self.c, 0.0, self.beta, self._gamma_max), self._gamma_max)
