"""Draft length of the sources in this process, from the acceptance over all sessions and of each session."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from specdec.planning.gamma import SESSION_WEIGHT, AcceptanceEstimate, best_gamma, speedup

_LEAST_SPEEDUP = 1.02
"""Predicted speed-up below which a source does not draft."""
_TRIAL = 2
"""Draft length of a trial, in tokens, for a source that is not predicted to pay."""
_EXPLORED = 0.01
"""Drafted tokens of trials that each round without a draft earns, over all sessions."""
_READING = 3e-5
"""Assumed cost of reading for a source and of its look-up, in seconds a round (decision 34)."""
_FIRST_WORTH = 0.2
"""Assumed net gain of an unmeasured source, in accepted tokens a round after the price of its drafts."""
_FIRST_ROUNDS = 100
"""Weight of that assumption, in rounds."""
_ROUNDS = 1000
"""Averaging window of the worth, in rounds. Later rounds weigh more."""
_SLIGHT = 0.1
"""Net gain in tokens a round below which passes that run ahead are assumed to gain more (decision 35)."""
_SCOUT = 8
"""One of this many sessions reads for a source that does not pay, to measure whether it pays again."""


@dataclass(slots=True)
class _Shown:
    """Measured acceptance of one source."""

    estimate: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    credit: float = 0.0
    """Budget of trials, in drafted tokens."""


class LocalAcceptance:
    """Acceptance of each source's drafts over all sessions."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = defaultdict(_Shown)

    def alpha(self, name: str) -> float:
        """Return the estimated acceptance α of a source."""
        return self._shown[name].estimate.alpha

    def may_try(self, name: str) -> bool:
        """Whether the budget allows a trial of drafts that are not predicted to pay."""
        return self._shown[name].credit >= _TRIAL

    def observe(self, name: str, drafted: int, accepted: int, *, tried: bool) -> None:
        """Update the estimate from a session's round. Rounds without drafts earn the budget of trials."""
        shown = self._shown[name]
        if drafted:
            shown.estimate = shown.estimate.observed(drafted, accepted)
            shown.credit -= drafted if tried else 0
        else:
            shown.credit = min(shown.credit + _EXPLORED, _TRIAL)


class LocalGamma:
    """Chooses γ for one source of a session, or 0 if its drafts do not pay. Drafts cost extra tokens but no wait."""

    def __init__(
        self, acceptance: LocalAcceptance, name: str, beta: Callable[[], float], most: int, *, ends_itself: bool
    ) -> None:
        """Create the controller of one session.

        Args:
            acceptance: acceptance over all sessions.
            name: key of the estimate: the source and an approximate temperature.
            beta: returns the cost of one more token for every session, in plain rounds.
            most: largest γ.
            ends_itself: whether the source ends a draft where its tokens are unlikely to be accepted.
        """
        self._acceptance = acceptance
        self._name = name
        self._beta = beta
        self._most = most
        self._ends_itself = ends_itself
        self._estimate = AcceptanceEstimate(weight=SESSION_WEIGHT)
        self._tries = False

    def gamma(self) -> int:
        """Return the draft length of the next round, in tokens."""
        alpha = self._estimate.over(self._acceptance.alpha(self._name))
        beta = self._beta()
        best = best_gamma(alpha, 0.0, beta=beta, limit=self._most)
        self._tries = speedup(alpha, best, 0.0, beta=beta) < _LEAST_SPEEDUP
        if self._tries:
            return min(_TRIAL, self._most) if self._acceptance.may_try(self._name) else 0
        return self._most if self._ends_itself else best

    def observe(self, drafted: int, accepted: int) -> None:
        """Update the estimates from a round."""
        self._estimate = self._estimate.observed(drafted, accepted)
        self._acceptance.observe(self._name, drafted, accepted, tried=self._tries)


class SourceWorth:
    """Net gain of one source after the price of its drafts, over all sessions at about one temperature."""

    def __init__(self, price: Callable[[], float]) -> None:
        """Start with the assumed gain; `price` returns the cost of one drafted token, in committed tokens."""
        self._price = price
        self._worth = _FIRST_WORTH
        self._rounds = _FIRST_ROUNDS
        self._sessions = count()

    @property
    def is_slight(self) -> bool:
        """Whether the gain is so small that passes may run ahead and delay the source's drafts by a round."""
        return self._worth < _SLIGHT

    def reads(self, goodput: float) -> bool:
        """Whether the source reads for the session that begins now; `goodput` is in committed tokens a second."""
        return next(self._sessions) % _SCOUT == 0 or self._worth >= max(_SLIGHT, _READING * goodput)

    def observe(self, drafted: int, accepted: int) -> None:
        """Update the gain from a session's round."""
        self._rounds = min(self._rounds + 1, _ROUNDS)
        brought = accepted - self._price() * drafted if drafted else 0.0
        self._worth += (brought - self._worth) / self._rounds
