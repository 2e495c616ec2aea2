"""How much sources of this process draft: by the acceptance of all sessions, until one has shown its own."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from specdec.planning.gamma import SESSION_WEIGHT, AcceptanceEstimate, best_gamma, speedup

_LEAST_SPEEDUP = 1.02
"""Predicted speed-up below which nothing is drafted."""
_TRIAL = 2
"""Drafts with which a source is tried where it is not predicted to pay."""
_EXPLORED = 0.01
"""Share of the tokens that such drafts may be, over all sessions."""
_READING = 3e-5
"""Seconds that it is taken to cost a round to read for a source and to look for its answer (decision 34)."""
_FIRST_WORTH = 0.2
"""Tokens that a source is taken to bring a round, over the price of its drafts, before anything is seen."""
_FIRST_ROUNDS = 100
"""Rounds that weigh as much as that."""
_ROUNDS = 1000
"""Rounds of which the worth is the mean, the later ones with more weight."""
_SLIGHT = 0.1
"""Tokens a round, below which passes that begin by themselves are taken to bring more (decision 35)."""
_SCOUT = 8
"""Of so many sessions one reads for a source that is not worth it, to find out whether it has become so."""


@dataclass(slots=True)
class _Shown:
    """What the drafts of one source have shown."""

    estimate: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    credit: float = 0.0
    """Drafts that trials may cost now."""


class LocalAcceptance:
    """The acceptance of each source's drafts over all sessions."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = defaultdict(_Shown)

    def alpha(self, name: str) -> float:
        """The estimate of a source."""
        return self._shown[name].estimate.alpha

    def may_try(self, name: str) -> bool:
        """Whether drafts that are not predicted to pay may be made, to find out whether they do."""
        return self._shown[name].credit >= _TRIAL

    def observe(self, name: str, drafted: int, accepted: int, *, tried: bool) -> None:
        """Learn from a session's round; trials are paid for by rounds without drafts."""
        shown = self._shown[name]
        if drafted:
            shown.estimate = shown.estimate.observed(drafted, accepted)
            shown.credit -= drafted if tried else 0
        else:
            shown.credit = min(shown.credit + _EXPLORED, _TRIAL)


class LocalGamma:
    """The γ of a session's source, whose drafts cost a pass their tokens and no wait; 0 where they do not pay."""

    def __init__(
        self, acceptance: LocalAcceptance, name: str, beta: Callable[[], float], most: int, *, ends_itself: bool
    ) -> None:
        """Make the γ of one session.

        Args:
            acceptance: of all sessions.
            name: of what is judged together: a source at about the same temperature.
            beta: reads the time of one more token for every session, in plain rounds.
            ends_itself: whether a draft of the source ends where its tokens are no longer likely to be accepted.
        """
        self._acceptance = acceptance
        self._name = name
        self._beta = beta
        self._most = most
        self._ends_itself = ends_itself
        self._estimate = AcceptanceEstimate(weight=SESSION_WEIGHT)
        self._tries = False

    def gamma(self) -> int:
        """Tokens to draft next."""
        alpha = self._estimate.over(self._acceptance.alpha(self._name))
        beta = self._beta()
        best = best_gamma(alpha, 0.0, beta=beta, limit=self._most)
        self._tries = speedup(alpha, best, 0.0, beta=beta) < _LEAST_SPEEDUP
        if self._tries:
            return min(_TRIAL, self._most) if self._acceptance.may_try(self._name) else 0
        return self._most if self._ends_itself else best

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round."""
        self._estimate = self._estimate.observed(drafted, accepted)
        self._acceptance.observe(self._name, drafted, accepted, tried=self._tries)


class SourceWorth:
    """What one source brings over what its drafts cost, over all sessions at about one temperature."""

    def __init__(self, price: Callable[[], float]) -> None:
        """`price` reads what one draft costs, in tokens that are committed."""
        self._price = price
        self._worth = _FIRST_WORTH
        self._rounds = _FIRST_ROUNDS
        self._sessions = count()

    @property
    def is_slight(self) -> bool:
        """Whether its drafts may come a round late where the rounds before them begin sooner."""
        return self._worth < _SLIGHT

    def reads(self, goodput: float) -> bool:
        """Whether it reads for the session that begins now, where a batch commits `goodput` tokens in a second."""
        return next(self._sessions) % _SCOUT == 0 or self._worth >= max(_SLIGHT, _READING * goodput)

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a session's round."""
        self._rounds = min(self._rounds + 1, _ROUNDS)
        brought = accepted - self._price() * drafted if drafted else 0.0
        self._worth += (brought - self._worth) / self._rounds
