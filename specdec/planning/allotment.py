"""Draft length of each session of a batch in the next round: the drafts most likely to be accepted, while they pay.

A round waits for the longest draft of its batch; then one pass computes the last token of every session and all drafts.
Draft j of a session is accepted with probability α^j, its survival. A draft is worth computing if its survival is at
least the threshold at which the batch commits most tokens per second. So one threshold and one greatest length
determine the draft length of every session.
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
    """Parts of the duration of a round, in seconds, measured on batches of the same size."""

    base: float
    """Fixed cost of a pass, including the time between two passes without drafts."""
    token: float
    """Cost of each token that a pass computes."""
    wait: float
    """Time until the first draft arrives, including the round trip to the drafter."""
    draft: float
    """Cost of each draft of the longest chain."""
    groups: int = 1
    """Number of groups of the batch that are drafted for and verified alternately, each in its own pass."""
    measured: float = 0.0
    """Tokens of the largest measured passes."""
    beyond: float = 0.0
    """Additional cost of each token beyond these."""

    def computing(self, tokens: _Numbers) -> _Numbers:
        """Duration of passes over `tokens` tokens, without the fixed cost."""
        seconds: _Numbers = self.token * tokens + self.beyond * np.maximum(tokens - self.measured, 0.0)
        return seconds

    def seconds(self, tokens: _Numbers, longest: _Numbers) -> _Numbers:
        """Duration of rounds of `tokens` computed tokens whose longest draft has `longest` tokens, 0 for plain ones."""
        groups = np.where(longest > 0, self.groups, 1)
        drafting = np.where(longest > 0, self.wait + self.draft * longest, 0.0)
        own, whole = self.base + self.computing(tokens / groups), self.base * groups + self.computing(tokens)
        seconds: _Numbers = np.maximum(whole, own + drafting)
        return seconds

    def drafts_within(self, seconds: float, most: int) -> int:
        """Length of the longest chain, up to `most`, that arrives within `seconds`; 1 if none does."""
        return next((count for count in range(most, 1, -1) if self.wait + self.draft * count <= seconds), 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """Acceptance rate and draft limit of one session."""

    alpha: float
    """Probability that the session's next draft is accepted."""
    limit: int
    """Most drafts that the session can take."""

    def up_to(self, most: int) -> "Demand":
        """A copy with the limit lowered to at most `most`."""
        return Demand(self.alpha, min(self.limit, most))


@dataclass(frozen=True, slots=True)
class Allotment:
    """Draft lengths of a batch: each session drafts every position whose survival is at least the threshold."""

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
    """Expected speed and wait of a round with drafts."""

    speedup: float
    """Tokens per second relative to a plain round of the same sessions."""
    wait: float
    """Expected seconds until the drafts arrive."""
    patience: float
    """Seconds that the round may wait for its drafts without being slower than a plain round; at least 0."""
    plain: float = 0.0
    """Seconds per token in plain rounds of the same sessions; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Inputs and results of the decision whether the current batch drafts."""

    alpha: float = 0.0
    """Acceptance rate over all sessions."""
    c: float = 0.0
    """Cost of one draft of the longest chain, in plain rounds."""
    beta: float = 0.0
    """Cost of one more token for every session, in plain rounds."""
    goodput: float = 0.0
    """Tokens per second that the batch commits with its current drafts."""
    price: float = 0.0
    """Tokens that the batch commits in the time that one more guessed token adds to a round."""
    near_price: float = 0.0
    """Tokens that the batch commits in the time of one more token in a pass of a measured size."""
    r: float = 0.0
    """Cost of a draft in addition to its tokens, in plain rounds."""
    plain_seconds: float = 0.0
    """Duration of a plain round, in seconds."""
    predicted: float = 1.0
    """Expected speed-up by drafts, corrected by the error of earlier predictions."""
    measured: float | None = None
    """Measured speed-up by drafts; None before a measurement."""
    groups: int = 1
    """Number of groups that are drafted for and verified alternately."""
    grouping: float | None = None
    """Tokens per second with two groups relative to one; None before a measurement."""
    overlap: float = 0.0
    """Mean Σ min(p, q̂) of the drafts judged by token rejection; 0 before the first."""


NO_DRAFTS = Allotment(1.0, 0)


def allot(demands: Sequence[Demand], others: int, costs: RoundSeconds, budget: int) -> Allotment:
    """The allotment of at least one draft that commits most tokens per second; NO_DRAFTS if no session can draft.

    Args:
        demands: demands of the sessions that may draft.
        others: number of sessions of the batch that do not draft.
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
    # Drafts of equal survival are taken together, because one threshold cannot separate them.
    ends = (computed > rows) & np.append(gains[1:] < gains[:-1], True)
    goodput = np.where(ends, tokens / costs.seconds(computed, longest), 0.0)
    cap, last = np.unravel_index(int(np.argmax(goodput)), goodput.shape)
    if not ends[cap, last]:
        return NO_DRAFTS
    return Allotment(float(gains[last]), int(cap) + 1)


def forecast(gammas: Sequence[int], demands: Sequence[Demand], others: int, costs: RoundSeconds) -> Forecast:
    """Forecast of rounds in which session i of `demands` drafts `gammas[i]` tokens; a speed-up of 1 without drafts."""
    longest, rows = max(gammas, default=0), len(demands) + others
    plain = costs.base / rows + costs.token
    if longest == 0:
        return Forecast(1.0, 0.0, 0.0, plain)
    tokens = others + sum(expected_tokens(demand.alpha, gamma) for demand, gamma in zip(demands, gammas, strict=True))
    computed = rows + sum(gammas)
    took = float(costs.seconds(np.array(computed), np.array(longest)))
    own = costs.base + float(costs.computing(np.array(computed / costs.groups)))
    wait = costs.wait + costs.draft * longest
    return Forecast(tokens * plain / took, wait, max(tokens * plain - own, 0.0), plain)
