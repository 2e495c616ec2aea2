"""Draft length and acceptance estimate of one session."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from specdec.planning.allotment import Demand, Judgement
from specdec.planning.gamma import (
    SESSION_WEIGHT,
    AcceptanceEstimate,
    EntropyGamma,
    FixedGamma,
    GammaController,
    OptimalGamma,
)
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.wire.generation import GammaReason, RoundDetail, Speedup
from verifier_service.speculation.trials import Trials

_KEEP = 0.995
"""Decay of earlier counts with each verdict. Its window is longer than a session's own, since all sessions count."""

_UNKNOWN = AcceptanceEstimate(decay=_KEEP)
_SECOND = AcceptanceEstimate(prior=0.1, weight=20.0, decay=_KEEP)
"""Assumed share of rounds that keep the second draft for the first position."""
_AGREEMENT = math.log(1.25)
"""Largest logarithmic difference between predicted and measured speed-up at which rounds report them."""


class FleetAcceptance:
    """Acceptance of the drafts of each source, and of all sources together."""

    def __init__(self) -> None:
        self.overall = _UNKNOWN
        self._overlap = AcceptanceEstimate(weight=0.0, decay=_KEEP)
        self._sources: dict[str, AcceptanceEstimate] = {}
        self._seconds: dict[str, AcceptanceEstimate] = {}

    def second(self, source: str) -> float:
        """Return the share of rounds that keep a source's second draft for the first position."""
        return self._seconds.get(source, _SECOND).alpha

    def learn_second(self, source: str, *, kept: bool | None) -> None:
        """Record whether a verdict keeps the second draft. None if there was none, which ages earlier verdicts."""
        self._seconds[source] = self._seconds.get(source, _SECOND).observed(kept is not None, bool(kept))

    def alpha(self, source: str) -> float:
        """Return the acceptance rate of a source's drafts."""
        return self._of(source).alpha

    @property
    def overlap(self) -> float:
        """Mean Σ min(p, q̂) of judged drafts, over the verdicts that know it; 0 before the first."""
        return self._overlap.alpha if self._overlap.accepted else 0.0

    def learn(self, source: str, drafted: int, accepted: int, overlap: float | None = None) -> None:
        """Record a session's verdict before it is cut, since a stop id among accepted drafts is no rejection.

        The arguments after the source are those of `AcceptanceEstimate.observed`.
        """
        self.overall = self.overall.observed(drafted, accepted, overlap)
        self._sources[source] = self._of(source).observed(drafted, accepted, overlap)
        if overlap is not None:
            self._overlap = self._overlap.observed(drafted, accepted, overlap)

    def _of(self, source: str) -> AcceptanceEstimate:
        return self._sources.get(source, _UNKNOWN)


def controller_of(
    fixed: int | None, policy: GammaPolicy, most: int, report: Callable[[], Judgement]
) -> GammaController | None:
    """Return the γ controller of a session with a fixed γ or its own policy, or None if the batch chooses γ."""
    if fixed is not None:
        return EntropyGamma(fixed) if fixed and policy.policy is PolicyKind.EGAG else FixedGamma(fixed)
    if policy.policy is PolicyKind.OPTIMAL:
        return OptimalGamma(lambda: report().c, lambda: report().beta, most, r=lambda: report().r)
    return None


class Batch(Protocol):
    """Interface of the batch controller for a session."""

    acceptance: FleetAcceptance
    drafting: bool
    """Whether the sessions of the batch draft now."""

    @property
    def trials(self) -> Trials:
        """Trials for the current batch."""

    def gamma(self, session: "SessionGamma") -> int:
        """Return the draft length of the session's next round."""

    def left(self, session: "SessionGamma") -> None:
        """Remove the session from the batch."""

    def report(self) -> Judgement:
        """Return the current estimates."""

    @property
    def threshold_and_trial(self) -> tuple[float, bool]:
        """Least survival probability of a draft that pays, and whether a trial runs."""


class SessionGamma:
    """Draft length and acceptance estimate of one session."""

    def __init__(self, batch: Batch, source: Callable[[], str | None], own: GammaController | None, most: int) -> None:
        """Create the controller of a session.

        Args:
            batch: controller of the batch.
            source: returns the name of the session's draft source, or None while no source is available.
            own: the session's own γ controller; None if the batch chooses γ.
            most: largest γ that the batch may choose.
        """
        self._batch = batch
        self._source = source
        self._own = own
        self._most = most
        self._estimate = AcceptanceEstimate(weight=SESSION_WEIGHT)

    def gamma(self) -> int:
        """Return the draft length of the next round, in tokens."""
        return self._batch.gamma(self) if self._own is None else self._own.gamma()

    @property
    def drafts(self) -> bool:
        """Whether the next round will probably draft."""
        return self._batch.drafting if self._own is None else self._own.gamma() > 0

    def observe(self, drafted: int, accepted: int, overlaps: Sequence[float] = ()) -> None:
        """Record a verdict.

        Args:
            drafted: drafted tokens.
            accepted: accepted ones.
            overlaps: Σ min(p, q̂) of each judged draft; empty if unknown.
        """
        overlap = sum(overlaps[:drafted]) if overlaps else None
        if drafted:
            self._estimate = self._estimate.observed(drafted, accepted, overlap)
            self._batch.acceptance.learn(self._source() or "", drafted, accepted, overlap)
        if self._own is not None:
            self._own.observe(drafted, accepted, overlap)

    def observe_second(self, *, kept: bool | None) -> None:
        """Record whether a verdict keeps the head's second draft for the first position; None if there was none."""
        self._batch.acceptance.learn_second(self._source() or "", kept=kept)

    def close(self) -> None:
        """Leave the batch at the end of the session."""
        self._batch.left(self)

    @property
    def source(self) -> str | None:
        """Name of the session's draft source; None while no source is available."""
        return self._source()

    def detail(self, gamma: int, room: int) -> RoundDetail:
        """Return the reason for the next draft length, cut to the room that the generation has left."""
        survival = 0.0
        match self._own:
            case None:
                survival, trial = self._batch.threshold_and_trial
                reason = GammaReason.TRIAL if trial else GammaReason.GOODPUT
            case EntropyGamma():
                reason = GammaReason.EGAG
            case FixedGamma():
                reason = GammaReason.FIXED
            case OptimalGamma():
                reason = GammaReason.OPTIMAL
        reason = GammaReason.ROOM if gamma > room else reason
        return RoundDetail(min(gamma, room), reason.value, self.demand(self.source).alpha, survival)

    def speedup(self) -> Speedup:
        """Return the speed-up of this batch by drafting.

        It is unknown if prediction and measurement disagree, while the batch decodes plainly, and if the session has
        its own γ controller.
        """
        if self._own is not None or not self._batch.trials.in_use:
            return Speedup()
        found = self._batch.report()
        if found.measured is None or abs(math.log(found.measured / found.predicted)) > _AGREEMENT:
            return Speedup()
        return Speedup(found.predicted, found.measured)

    def demand(self, source: str | None) -> Demand:
        """Return the session's α and longest draft. α starts near the mean of all sessions with the same source."""
        alpha = self._estimate.over(self._batch.acceptance.alpha(source or ""))
        return Demand(alpha, 0 if source is None else self._most)
