"""From live numbers to how many drafters there should be; pure, and the window that keeps it from fluttering."""

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from gateway.ratio_controller.config import ScalingSettings
from specdec.rules.sizing import Policy, RoundCosts, drafters_per_verifier, pays
from specdec.serving.readings import Reading


@dataclass(frozen=True, slots=True)
class Wish:
    """How many drafters, and why."""

    drafters: int
    reason: str
    ratio: float | None = None
    """N_d / N_v by the formula; None where it could not be said."""
    speedup: float | None = None


def wish(reading: Reading, current: int, settings: ScalingSettings) -> Wish:
    """The drafters that the verifiers there are need now.

    The ratio of the formula leads; starvation corrects it up, idle drafters correct it down. Never the drafters' own
    queue alone: in a closed loop, a slow verifier empties it.
    """
    if reading.verifiers == 0:
        return _clamped(Wish(current, "no_verifier"), settings)
    if current == 0:
        return _clamped(Wish(1, "try"), settings)
    costs = _costs(reading, settings.draft_batch)
    if costs is None and reading.verify_pass is not None and reading.gamma is None:
        return Wish(settings.minimum, "nobody_asks")
    if costs is None:
        return _clamped(Wish(current, "no_numbers"), settings)
    policy = Policy(settings.verify_busy, settings.draft_busy, settings.min_speedup)
    ratio = drafters_per_verifier(costs, policy)
    if not pays(costs, policy):
        return Wish(settings.minimum, "does_not_pay", ratio, costs.speedup)
    wanted = math.ceil(ratio * reading.verifiers - 1e-9)
    if abs(wanted - current) <= settings.tolerance * current:
        wanted = current
    return _clamped(_corrected(Wish(wanted, "ratio", ratio, costs.speedup), reading, current, settings), settings)


def _corrected(found: Wish, reading: Reading, current: int, settings: ScalingSettings) -> Wish:
    starved, busy = reading.starvation or 0.0, reading.draft_busy
    idle = busy is not None and busy < settings.idle
    if starved > settings.starved:
        # Idle drafters that starve their verifiers have another trouble, which more of them would not mend.
        if idle or current < found.drafters:
            return found
        return Wish(current + 1, "starvation", found.ratio, found.speedup)
    if busy is not None and idle:
        enough = max(math.ceil(current * busy / settings.draft_busy - 1e-9), 1)
        if enough < found.drafters:
            return Wish(enough, "idle", found.ratio, found.speedup)
    return found


def _clamped(found: Wish, settings: ScalingSettings) -> Wish:
    inside = min(max(found.drafters, settings.minimum), settings.maximum)
    return found if inside == found.drafters else Wish(inside, "limit", found.ratio, found.speedup)


def _costs(reading: Reading, full_batch: float) -> RoundCosts | None:
    """None before there are numbers for all of it."""
    known = (reading.alpha, reading.gamma, reading.draft_step, reading.draft_batch)
    verify = (reading.verify_pass, reading.verify_batch)
    values = [value for value in (*known, *verify) if value is not None]
    if len(values) < len(known) + len(verify):
        return None
    alpha, gamma, draft_step, draft_batch, verify_pass, verify_batch = values
    return RoundCosts(
        alpha=alpha,
        gamma=round(gamma),
        draft_step=draft_step,
        verify_pass=verify_pass,
        plain_pass=reading.plain_pass or verify_pass,
        draft_batch=max(draft_batch, full_batch),
        verify_batch=verify_batch,
        round_trip=reading.round_trip or 0.0,
    )


class Stabiliser:
    """Follows wishes only when they last: up to the least of a short window, down to the most of a long one."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._settings = settings
        self._wishes: deque[tuple[float, int]] = deque()

    def settle(self, wanted: int, current: int, now: float) -> int:
        """The drafters to have at `now`, in seconds of a clock that only rises."""
        settings = self._settings
        # Without drafters nobody can tell what drafting would bring: it is tried, but not all the time.
        up = settings.up_seconds if current else settings.retry
        self._wishes.append((now, wanted))
        self._forget(now - max(up, settings.down_seconds))
        if wanted > current:
            return max(min(self._since(now - up), default=current), current)
        return min(max(self._since(now - settings.down_seconds), default=current), current)

    def _forget(self, before: float) -> None:
        """Keep one wish that is older, as proof that the window is full."""
        while len(self._wishes) > 1 and self._wishes[1][0] <= before:
            self._wishes.popleft()

    def _since(self, start: float) -> list[int]:
        """The wishes that held at any time from `start` on; none when nobody looked as early as that."""
        if self._wishes[0][0] > start:
            return []
        times = [at for at, _ in self._wishes]
        first = bisect_right(times, start) - 1
        return [wanted for _, wanted in list(self._wishes)[first:]]
