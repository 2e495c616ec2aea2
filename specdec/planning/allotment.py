"""Which sessions of a batch draft how much in the next round: the drafts that survive most likely, as long as they pay.

A round waits for the longest draft of its batch, and then one pass computes the last token of every session and all
drafts. Draft j of a session survives with probability α^j. A draft is worth its place where its survival is at least
the threshold at which the batch commits most tokens a second, so one threshold and one greatest length say how much
each session drafts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.planning.gamma import expected_tokens

_Numbers = NDArray[np.number[Any]]


@dataclass(frozen=True, slots=True)
class RoundSeconds:
    """What a round of a batch takes, in seconds, as measured on batches of its size."""

    base: float
    """A pass without any token, and the time between two passes without drafts."""
    token: float
    """Each token that a pass computes."""
    wait: float
    """Until the first draft comes, the round trip to the drafter among it."""
    draft: float
    """Each draft of the longest chain."""
    groups: int = 1
    """Parts of the batch that draft and are verified in turns, each in a pass of its own."""

    def seconds(self, tokens: _Numbers, longest: _Numbers) -> _Numbers:
        """The time of rounds that compute `tokens` tokens behind drafts of up to `longest`, 0 for a plain round."""
        groups = np.where(longest > 0, self.groups, 1)
        drafting = np.where(longest > 0, self.wait + self.draft * longest, 0.0)
        own = self.base + self.token * tokens / groups
        seconds: _Numbers = np.maximum(self.base * groups + self.token * tokens, own + drafting)
        return seconds

    def drafts_within(self, seconds: float, most: int) -> int:
        """The longest chain, up to `most`, that comes within so many seconds; of 1 draft where none does."""
        return next((count for count in range(most, 1, -1) if self.wait + self.draft * count <= seconds), 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one session can make of drafts."""

    alpha: float
    """The chance that its next draft is accepted."""
    limit: int
    """Most drafts it can take."""

    def up_to(self, most: int) -> "Demand":
        """The same, of no more than so many drafts."""
        return Demand(self.alpha, min(self.limit, most))

    def at_least(self, alpha: float) -> "Demand":
        """The same, by an α of at least that."""
        return Demand(max(self.alpha, alpha), self.limit)


@dataclass(frozen=True, slots=True)
class Allotment:
    """Who drafts how much: every draft whose survival is at least the threshold."""

    threshold: float
    longest: int
    """Most drafts of one session."""

    def gamma(self, demand: Demand) -> int:
        """The draft length of a session."""
        most = min(self.longest, demand.limit)
        if demand.alpha <= 0.0 or most <= 0:
            return 0
        if demand.alpha >= 1.0:
            return most
        return min(most, int(math.log(self.threshold) / math.log(demand.alpha) + 1e-6))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a round of drafts is expected to bring."""

    speedup: float
    """Tokens a second, over those of a plain round of the same sessions."""
    wait: float
    """Expected seconds until the drafts are there."""
    patience: float
    """Seconds that the round may wait for its drafts and still be no slower than a plain one; never below 0."""
    plain: float = 0.0
    """Seconds that a token takes in plain rounds of the same sessions; 0 where that is unknown."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judgement of the present batch rests on."""

    alpha: float = 0.0
    """Acceptance over all sessions."""
    c: float = 0.0
    """One draft of the longest chain, in plain rounds."""
    beta: float = 0.0
    """One more token for every session, in plain rounds."""
    goodput: float = 0.0
    """Tokens that the batch commits in a second, with the drafts that it has."""
    price: float = 0.0
    """Those that it commits in the time by which one more token of a guess makes a round longer."""
    r: float = 0.0
    """What a draft costs beside its tokens, in plain rounds."""
    plain_seconds: float = 0.0
    """A plain round."""
    predicted: float = 1.0
    """Speed-up that drafts are expected to bring, with what earlier rounds have shown of such expectations."""
    measured: float | None = None
    """Speed-up that drafts have brought; None before it has been measured."""
    groups: int = 1
    """Groups that are drafted for and verified in turns."""
    grouping: float | None = None
    """Tokens a second of two groups over those of one; None before it has been measured."""


NO_DRAFTS = Allotment(1.0, 0)


def allot(demands: Sequence[Demand], others: int, costs: RoundSeconds, budget: int) -> Allotment:
    """The allotment of one draft or more that commits most tokens a second; NO_DRAFTS where nobody can draft.

    Args:
        demands: of the sessions that may draft.
        others: sessions of the batch that do not.
        budget: most drafts of all sessions together.
    """
    most = max((demand.limit for demand in demands), default=0)
    if most <= 0 or budget <= 0:
        return NO_DRAFTS
    alphas = np.array([demand.alpha for demand in demands])[:, None]
    places = np.arange(1, most + 1)
    survival = np.where(places <= np.array([demand.limit for demand in demands])[:, None], alphas**places, 0.0)
    order = np.argsort(-survival, axis=None, kind="stable")[:budget]
    gains, place = survival.ravel()[order], order % most + 1
    longest = places[:, None]
    taken = (place <= longest) & (gains > 0.0)
    rows = len(demands) + others
    tokens = rows + np.cumsum(gains * taken, axis=1)
    computed = rows + np.cumsum(taken, axis=1)
    # Drafts that survive as likely are taken together, because one threshold cannot part them.
    ends = (computed > rows) & np.append(gains[1:] < gains[:-1], True)
    goodput = np.where(ends, tokens / costs.seconds(computed, longest), 0.0)
    cap, last = np.unravel_index(int(np.argmax(goodput)), goodput.shape)
    if not ends[cap, last]:
        return NO_DRAFTS
    return Allotment(float(gains[last]), int(cap) + 1)


def forecast(gammas: Sequence[int], demands: Sequence[Demand], others: int, costs: RoundSeconds) -> Forecast:
    """What rounds bring in which each session of `demands` drafts so much; a speed-up of 1 where nobody drafts."""
    longest, rows = max(gammas, default=0), len(demands) + others
    plain = costs.base / rows + costs.token
    if longest == 0:
        return Forecast(1.0, 0.0, 0.0, plain)
    tokens = others + sum(expected_tokens(demand.alpha, gamma) for demand, gamma in zip(demands, gammas, strict=True))
    computed = rows + sum(gammas)
    took = float(costs.seconds(np.array(computed), np.array(longest)))
    own = costs.base + costs.token * computed / costs.groups
    wait = costs.wait + costs.draft * longest
    return Forecast(tokens * plain / took, wait, max(tokens * plain - own, 0.0), plain)
