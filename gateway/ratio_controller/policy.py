"""Scaling policy: recommends a number of drafters from metrics, and follows recommendations that last."""

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace

from gateway.ratio_controller.config import ScalingSettings
from specdec.planning.sizing import Policy, drafters_per_verifier, pays
from specdec.serving.telemetry.snapshot import MetricsSnapshot


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended number of drafters, and the reason."""

    drafters: int
    reason: str
    ratio: float | None = None
    """Drafters per verifier, N_d / N_v, by the formula; None if it could not be computed."""
    speedup: float | None = None
    """Speed-up of a session from drafts, by the formula; None if it could not be computed."""


def recommend(snapshot: MetricsSnapshot, current: int, settings: ScalingSettings) -> Recommendation:
    """Return the number of drafters that the current verifiers need.

    The formula gives the ratio. Starved rounds correct it up, and idle drafters correct it down. The drafters' queue
    alone never decides, because in a closed loop a slow verifier empties it.
    """
    found = _unbounded(snapshot, current, settings)
    inside = min(max(found.drafters, settings.minimum), settings.maximum)
    return found if inside == found.drafters else replace(found, drafters=inside, reason="limit")


def _unbounded(snapshot: MetricsSnapshot, current: int, settings: ScalingSettings) -> Recommendation:
    if snapshot.verifiers == 0:
        return Recommendation(current, "no_verifier")
    if current == 0:
        return Recommendation(1, "try")
    costs = snapshot.costs
    if costs is None and snapshot.verify_pass is not None and snapshot.gamma is None:
        return Recommendation(settings.minimum, "nobody_asks")
    if costs is None:
        return Recommendation(current, "no_numbers")
    costs = replace(costs, draft_batch=max(costs.draft_batch, settings.draft_batch))
    policy = Policy(settings.verify_busy, settings.draft_busy, settings.min_speedup)
    ratio = drafters_per_verifier(costs, policy)
    if not pays(costs, policy):
        return Recommendation(settings.minimum, "does_not_pay", ratio, costs.speedup)
    wanted = math.ceil(ratio * snapshot.verifiers - 1e-9)
    if abs(wanted - current) <= settings.tolerance * current:
        wanted = current
    return _corrected(Recommendation(wanted, "ratio", ratio, costs.speedup), snapshot, current, settings)


def _corrected(
    found: Recommendation, snapshot: MetricsSnapshot, current: int, settings: ScalingSettings
) -> Recommendation:
    starved, busy = snapshot.starvation or 0.0, snapshot.draft_busy
    idle = busy is not None and busy < settings.idle
    if starved > settings.starved:
        # When drafters are idle and rounds still starve, the cause is another, and more drafters would not help.
        if idle or current < found.drafters:
            return found
        return replace(found, drafters=current + 1, reason="starvation")
    if busy is not None and idle:
        enough = max(math.ceil(current * busy / settings.draft_busy - 1e-9), 1)
        if enough < found.drafters:
            return replace(found, drafters=enough, reason="idle")
    return found


class Stabiliser:
    """Follows recommendations that last: up to the least of a short window, down to the greatest of a long one."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._settings = settings
        self._recommended: deque[tuple[float, int]] = deque()

    def settle(self, wanted: int, current: int, now: float) -> int:
        """Return the number of drafters to run at time `now`, in seconds of a monotonic clock."""
        settings = self._settings
        # Without drafters nothing is measured, so one is tried periodically.
        up = settings.up_seconds if current else settings.retry
        self._recommended.append((now, wanted))
        self._forget(now - max(up, settings.down_seconds))
        if wanted > current:
            return max(min(self._since(now - up), default=current), current)
        return min(max(self._since(now - settings.down_seconds), default=current), current)

    def _forget(self, before: float) -> None:
        """Drop recommendations older than the window, except the one valid at the start of the window."""
        while len(self._recommended) > 1 and self._recommended[1][0] <= before:
            self._recommended.popleft()

    def _since(self, start: float) -> list[int]:
        """Return the recommendations valid at any time since `start`; empty if the first is later."""
        if self._recommended[0][0] > start:
            return []
        times = [at for at, _ in self._recommended]
        first = bisect_right(times, start) - 1
        return [wanted for _, wanted in list(self._recommended)[first:]]
