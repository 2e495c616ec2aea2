"""The draft length of one session, and what is known of its drafts."""

import math
from collections.abc import Callable
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
from verifier_service.speculation.fleet_acceptance import FleetAcceptance

_AGREEMENT = math.log(1.25)
"""Largest difference, as a logarithm, of two estimates of the speed-up that answers carry."""


def controller_of(
    fixed: int | None, policy: GammaPolicy, most: int, report: Callable[[], Judgement]
) -> GammaController | None:
    """What chooses γ for one session alone, of a fixed γ or by a policy; None leaves it to the batch."""
    if fixed is not None:
        return EntropyGamma(fixed) if fixed and policy.policy is PolicyKind.EGAG else FixedGamma(fixed)
    if policy.policy is PolicyKind.OPTIMAL:
        return OptimalGamma(lambda: report().c, lambda: report().beta, most, r=lambda: report().r)
    return None


class Batch(Protocol):
    """What a session needs of the judgement of its batch."""

    acceptance: FleetAcceptance
    drafting: bool
    """Whether its sessions draft now."""

    def gamma(self, session: "SessionGamma") -> int:
        """The drafts of the session's next round."""

    def left(self, session: "SessionGamma") -> None:
        """Forget the session."""

    def report(self) -> Judgement:
        """What is believed now."""

    @property
    def grounds(self) -> tuple[float, bool]:
        """The least survival of a draft that is worth its time, and whether the way taken is on trial."""


class SessionGamma:
    """The draft length of one session, and what is known of its drafts."""

    def __init__(self, batch: Batch, source: Callable[[], str | None], own: GammaController | None, most: int) -> None:
        """Make the γ of a session of a batch.

        Args:
            own: chooses for this session alone; None leaves it to the batch.
            most: most drafts that the batch may give it.
        """
        self._batch = batch
        self._source = source
        self._own = own
        self._most = most
        self._estimate = AcceptanceEstimate(weight=SESSION_WEIGHT)

    def gamma(self) -> int:
        """Number of tokens to draft next."""
        return self._batch.gamma(self) if self._own is None else self._own.gamma()

    @property
    def drafts(self) -> bool:
        """Whether its next round is to draft, as far as can be told before it asks."""
        return self._batch.drafting if self._own is None else self._own.gamma() > 0

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a verdict."""
        if drafted:
            self._estimate = self._estimate.observed(drafted, accepted)
            self._batch.acceptance.learn(self._source() or "", drafted, accepted)
        if self._own is not None:
            self._own.observe(drafted, accepted)

    def close(self) -> None:
        """Leave the batch: the session has ended."""
        self._batch.left(self)

    @property
    def source(self) -> str | None:
        """What its drafts come from; None while there is nothing that drafts."""
        return self._source()

    def detail(self, gamma: int, room: int) -> RoundDetail:
        """Why the next round drafts so much, within the room that the generation has."""
        survival = 0.0
        match self._own:
            case None:
                survival, trial = self._batch.grounds
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
        """Speed-up by drafts in this batch, where prediction and measurement agree; unknown for a γ of its own."""
        if self._own is not None:
            return Speedup()
        found = self._batch.report()
        if found.measured is None or abs(math.log(found.measured / found.predicted)) > _AGREEMENT:
            return Speedup()
        return Speedup(found.predicted, found.measured)

    def demand(self, source: str | None) -> Demand:
        """What the session can make of drafts of its source: its α is near the fleet's until it has shown its own."""
        alpha = self._estimate.over(self._batch.acceptance.alpha(source or ""))
        return Demand(alpha, 0 if source is None else self._most)
