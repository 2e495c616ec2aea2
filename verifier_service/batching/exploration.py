"""A γ controller that drafts now and then although drafting seems not to pay: costs change, and only rounds show it."""

from specdec.rules.gamma import GammaController

_GAMMA = 4
"""Draft length of an exploring round."""
_BURST = 3
"""Exploring rounds in a row: in the first the drafter may have to catch up, the others show what drafting costs."""
_PAUSE = 64
"""Plain rounds before the next burst; twice as many after each burst that changed nothing."""


class ExploringGamma:
    """Follows another controller, but drafts a few rounds before it believes that drafting does not pay."""

    def __init__(self, inner: GammaController, gamma_max: int) -> None:
        self._inner = inner
        self._gamma = min(_GAMMA, gamma_max)
        self._left = _BURST
        self._pause = _PAUSE
        self._plain = 0

    def gamma(self) -> int:
        """Number of tokens to draft next."""
        chosen = self._inner.gamma()
        return self._gamma if chosen == 0 and self._left else chosen

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round."""
        self._inner.observe(drafted, accepted)
        if drafted:
            self._left = max(self._left - 1, 0)
            self._plain = 0
        elif not self._left:
            self._wait()

    def _wait(self) -> None:
        self._plain += 1
        if self._plain == self._pause:
            self._left, self._plain = _BURST, 0
            self._pause *= 2
