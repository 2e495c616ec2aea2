"""Measured costs of a round: c and β, which the choice of γ needs, in plain passes of the target."""

import math
import time
from collections.abc import Callable

from specdec.rules.gamma import AcceptanceEstimate, FixedGamma, GammaController, OptimalGamma, expected_tokens

_KEEP = 0.98
"""Factor by which each observation lowers the weight of those before."""
_UNKNOWN_C = 0.1
"""c before the drafter and the target have been measured."""
_UNKNOWN_BETA = 0.02
"""β before passes of different sizes have been measured."""
_HALF_LIFE = 10.0
"""Seconds in which the weight of earlier waits halves."""
_PRIOR_DRAFTS = 4.0
"""Weight, in drafts, of the step time that drafters report."""
_SPREAD = 0.25
"""Variance of tokens per pass below which their marginal cost cannot be told from noise."""
_EXPLORED_GAMMA = 4
"""Draft length of an exploring round."""
_BURST = 3
"""Exploring rounds in a row: in the first the drafter may have to catch up, the others show what drafting costs."""
_PAUSE = 64
"""Plain rounds before the next burst; twice as many after each burst that changed nothing."""


class PassCost:
    """Seconds of a target pass as base + slope · tokens, by least squares with fading weights."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        self._rows = 0.0
        self._prompt_tokens = self._prompt_seconds = 0.0

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn from a pass over `rows` sessions and `tokens` tokens, without prompt chunks."""
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
        """Prompt tokens computed in a second; 0 before the first prompt."""
        return self._prompt_tokens / self._prompt_seconds if self._prompt_seconds else 0.0

    def step(self) -> float | None:
        """Seconds of a plain pass over the mean number of sessions; None before the first pass."""
        if self._weight == 0.0:
            return None
        mean, tokens, rows = (total / self._weight for total in (self._seconds, self._tokens, self._rows))
        slope = self._slope()
        if slope is None:
            return mean / (1.0 + _UNKNOWN_BETA * (tokens - rows) / rows)
        return max(mean - slope * (tokens - rows), 0.1 * mean)

    def beta(self) -> float:
        """Cost of one more token for every session of a mean pass, in plain passes."""
        step, slope = self.step(), self._slope()
        if step is None or slope is None:
            return _UNKNOWN_BETA
        return min(slope * self._rows / self._weight / step, 1.0)

    def _slope(self) -> float | None:
        """Seconds of one more token in a pass; None while passes have not differed enough."""
        if self._weight < 2.0:
            return None
        tokens, seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - tokens * tokens
        if variance < _SPREAD:
            return None
        return max((self._products / self._weight - tokens * seconds) / variance, 0.0)


class DraftCost:
    """Seconds that a round waits for each of its drafts; drafting that other work hides is not counted.

    Observations fade within seconds towards the step time that drafters report, so that one that was slow is tried
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
        """Seconds that a draft token costs, None when unknown; `prior` is the step time that drafters report."""
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


class ExploringGamma:
    """Follows another controller, but drafts now and then although drafting seems not to pay.

    Costs change, and only rounds with drafts show it.
    """

    def __init__(self, inner: GammaController, explored: int, teach: Callable[[int, int], None]) -> None:
        """`explored` is the γ of exploring rounds, 0 for none; `teach` is told what `observe` is told."""
        self._inner = inner
        self._gamma = explored
        self._teach = teach
        self._left = _BURST
        self._pause = _PAUSE
        self._plain = 0

    def gamma(self) -> int:
        """Number of tokens to draft next."""
        chosen = self._inner.gamma()
        return self._gamma if chosen == 0 and self._left else chosen

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a verdict."""
        self._inner.observe(drafted, accepted)
        self._teach(drafted, accepted)
        if drafted:
            self._left = max(self._left - 1, 0)
            self._plain = 0
        elif not self._left:
            self._plain += 1
            if self._plain == self._pause:
                self._left, self._plain = _BURST, 0
                self._pause *= 2


class MeasuredCosts:
    """The measurements of all sessions, and the γ controllers that read them."""

    def __init__(self, gamma_max: int, draft_step: Callable[[], float | None]) -> None:
        """`draft_step` gives the step time that drafters report, in seconds; None while it is unknown."""
        self.passes = PassCost()
        self.drafts = DraftCost()
        self._gamma_max = gamma_max
        self._draft_step = draft_step
        self._acceptance = AcceptanceEstimate(decay=0.995)

    def c(self) -> float:
        """One draft token in plain passes; measured waits include the network's round trip, so r is 0 beside it."""
        step = self.passes.step()
        seconds = self.drafts.per_token(self._draft_step())
        return _UNKNOWN_C if step is None or seconds is None else seconds / step

    def worth_waiting(self, held: int, gamma: int) -> float:
        """Longest wait, in seconds, that pays for having γ drafts instead of the `held` that have come.

        A round of W + T(1 + γβ) seconds commits E(γ) tokens, and plain decoding commits one in T seconds; so the rest
        of the draft pays for W = T(E(γ) - E(held) - (γ - held)β).
        """
        step = self.passes.step()
        if step is None:
            return math.inf
        more = expected_tokens(self.alpha, gamma) - expected_tokens(self.alpha, held)
        return max(step * (more - (gamma - held) * self.passes.beta()), 0.0)

    def accepted(self, drafted: int, accepted: int) -> None:
        """Learn from a verdict of any session; each controller has an estimate of its own beside this one.

        The counts are those of the verdict, before the round is cut: an end id among the accepted drafts is no
        rejection.
        """
        if drafted:
            self._acceptance = self._acceptance.observed(drafted, accepted)

    @property
    def alpha(self) -> float:
        """Estimated acceptance over all sessions."""
        return self._acceptance.alpha

    def controller(self, gamma: int | None) -> GammaController:
        """The controller of a session's γ: fixed, or led by these costs when `gamma` is None.

        What it observes, `accepted` learns as well.
        """
        if gamma is not None:
            return ExploringGamma(FixedGamma(gamma), 0, self.accepted)
        optimal = OptimalGamma(self.c, self.passes.beta, self._gamma_max)
        return ExploringGamma(optimal, min(_EXPLORED_GAMMA, self._gamma_max), self.accepted)
