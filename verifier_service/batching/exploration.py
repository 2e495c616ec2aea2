"""A γ controller that looks for itself now and then: costs that nobody measures are only somebody's word."""

from specdec.rules.gamma import GammaController

_GAMMA = 4
_BURST = 3
"""Rounds of one look: the first finds a drafter that has to catch up, the others what drafting costs."""
_PAUSE = 64
"""Plain rounds before the next look, twice as many after each that changed nothing."""


class Exploring:
    """Follows another controller, but drafts a few rounds before it believes that drafting does not pay."""

    def __init__(self, inner: GammaController, gamma_max: int) -> None:
        self._inner = inner
        self._gamma = min(_GAMMA, gamma_max)
        self._left = _BURST
        self._pause = _PAUSE
        self._plain = 0

    def gamma(self) -> int:
        """Tokens to draft next."""
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
