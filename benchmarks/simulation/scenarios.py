"""Scenarios of the simulated system: the knee of the ratio, the cost of a lost node, and the tracking of demand."""

import math
from dataclasses import dataclass, replace

from benchmarks.simulation.tiers import Tiers
from benchmarks.simulation.world import World
from gateway.ratio_controller.config import ScalingSettings
from gateway.ratio_controller.policy import Stabiliser, recommend
from specdec.planning.sizing import Policy, drafters_per_verifier, size
from specdec.serving.telemetry.snapshot import MetricsSnapshot, snapshot_of

FULL = Policy(verify_busy=1.0, draft_busy=1.0)
WARM_UP = 1.0
"""Seconds before the measurement starts."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    sessions: int
    verifiers: int
    drafters: int
    tokens_per_second: float
    predicted: float
    """The throughput by the closed form."""
    starvation: float

    @property
    def ratio(self) -> float:
        """Drafters per verifier."""
        return self.drafters / self.verifiers


def predicted(world: World, sessions: int, verifiers: int, drafters: int) -> float:
    """Return the tokens a second of the closed form: the least of the limits of verifiers, drafters and sessions."""
    costs = world.costs()
    rounds = min(
        verifiers * costs.verify_batch / costs.verify_pass,
        drafters * costs.draft_batch / (costs.gamma * costs.draft_step),
        sessions / costs.round_seconds,
    )
    return rounds * costs.tokens_per_round


def measure(world: World, sessions: int, verifiers: int, drafters: int, seconds: float, seed: int = 0) -> Point:
    """Measure one steady state."""
    tiers = Tiers(world, verifiers, drafters, gateways=max(sessions // 250, 1), seed=seed)
    tiers.open(sessions)
    tiers.run(WARM_UP)
    before = dict(tiers.counters)
    tiers.run(WARM_UP + seconds)
    done = {name: value - before[name] for name, value in tiers.counters.items()}
    starvation = done["starved"] / done["asked_rounds"] if done["asked_rounds"] else 0.0
    expected = predicted(world, sessions, verifiers, drafters)
    return Point(sessions, verifiers, drafters, done["tokens"] / seconds, expected, starvation)


def verifiers_for(world: World, sessions: int, spare: float) -> int:
    """Return the number of verifiers that `sessions` sessions keep busy `spare` times over."""
    full = size(1.0, world.costs(), FULL).sessions_per_verifier
    return max(round(sessions / (spare * full)), 1)


def knee(world: World, sessions: int, ratios: list[float], seconds: float, spare: float = 1.25) -> list[Point]:
    """Return the throughput over drafters per verifier."""
    verifiers = verifiers_for(world, sessions, spare)
    counts = sorted({max(math.ceil(ratio * verifiers), 1) for ratio in ratios})
    return [measure(world, sessions, verifiers, drafters, seconds) for drafters in counts]


@dataclass(frozen=True, slots=True)
class Moment:
    """One second of a scenario."""

    at: float
    tokens_per_second: float
    sessions: int
    verifiers: int
    drafters: int


def losses(world: World, seconds: int = 60) -> list[Moment]:
    """Simulate eight verifiers and four drafters that lose one of each, which return after a while."""
    tiers = Tiers(world, verifiers=8, drafters=4, gateways=2, seed=1)
    tiers.open(400)
    story = {15: tiers.lose_drafter, 25: tiers.add_drafter, 35: tiers.lose_verifier, 45: tiers.add_verifier}
    moments = []
    for second in range(seconds):
        story.get(second, lambda: None)()
        moments.append(_second(tiers, second))
    return moments


def scaling(world: World, seconds: int = 600) -> list[Moment]:
    """Simulate demand that doubles twice and falls.

    Verifiers follow the sessions, drafters the controller's own policy.
    """
    tiers = Tiers(world, verifiers=2, drafters=1, gateways=2, seed=2)
    settings = ScalingSettings(
        minimum=1, maximum=16, draft_batch=world.draft_batch, up_seconds=10, down_seconds=60, draft_busy=0.7
    )
    controller, full = Stabiliser(settings), size(1.0, world.costs(), FULL).sessions_per_verifier
    demand = {0: 90, 100: 180, 220: 360, 380: -180, 480: -270}
    moments: list[Moment] = []
    before = dict(tiers.counters)
    for second in range(seconds):
        change = demand.get(second, 0)
        (tiers.open if change > 0 else tiers.close)(abs(change))
        if second % 10 == 9:
            _follow(tiers, math.ceil(len(tiers.sessions) / (0.9 * full)))
            current = len(tiers.drafters)
            wanted = recommend(_snapshot(tiers, before, 10.0), current, settings).drafters
            _rescale(tiers, controller.settle(wanted, current, second), delay=20.0)
            before = dict(tiers.counters)
        moments.append(_second(tiers, second))
    return moments


def where_it_breaks(world: World, seconds: float) -> dict[str, list[Point]]:
    """Compare throughput at the formula's ratio with the closed form, while one of its assumptions is violated."""
    sized = round(drafters_per_verifier(world.costs(), FULL) * 20 + 0.49)
    sessions = verifiers_to_sessions(world, 20)
    return {
        "few sessions": [measure(world, sessions * part // 100, 20, sized, seconds) for part in (10, 25, 50, 100, 200)],
        "round trip": [
            measure(replace(world, round_trip=trip), sessions, 20, sized, seconds)
            for trip in (0.0, 0.005, 0.01, 0.02, 0.05)
        ],
        "acceptance": [
            measure(replace(world, alpha=alpha), sessions, 20, sized, seconds) for alpha in (0.3, 0.5, 0.7, 0.9)
        ],
        "slow commits": [
            measure(replace(world, commit=commit), sessions, 20, sized, seconds) for commit in (1e-4, 3e-4, 1e-3)
        ],
    }


def verifiers_to_sessions(world: World, verifiers: int) -> int:
    """Return the number of sessions that keep `verifiers` full, with a quarter to spare."""
    return math.ceil(1.25 * verifiers * size(1.0, world.costs(), FULL).sessions_per_verifier)


def _second(tiers: Tiers, second: int) -> Moment:
    before = tiers.counters["tokens"]
    tiers.run(second + 1.0)
    tokens = tiers.counters["tokens"] - before
    return Moment(second + 1.0, tokens, len(tiers.sessions), len(tiers.verifiers), len(tiers.drafters))


def _snapshot(tiers: Tiers, before: dict[str, float], seconds: float) -> MetricsSnapshot:
    """Return the metrics derived from the counters, in the form that the services export."""
    done = {name: value - before[name] for name, value in tiers.counters.items()}
    return snapshot_of(
        {
            "specdec_spec_accepted_tokens_total": done["accepted"],
            'specdec_spec_tokens_by_origin_total{origin="recovered"}': done["recovered"],
            "specdec_spec_asked_rounds_total": done["asked_rounds"],
            "specdec_spec_asked_tokens_total": done["asked_rounds"] * tiers.world.gamma,
            "specdec_spec_starved_rounds_total": done["starved"],
            "specdec_verify_pass_seconds_sum": done["verify_seconds"],
            "specdec_verify_pass_seconds_count": done["verify_steps"],
            "specdec_batch_rows_sum": done["verify_rows"],
            "specdec_drafter_step_seconds_sum": done["draft_seconds"],
            "specdec_drafter_step_seconds_count": done["draft_steps"],
            "specdec_drafter_batch_size_sum": done["draft_rows"],
            "specdec_drafter_batch_size_count": done["draft_steps"],
        },
        {"specdec_verify_plain_seconds": tiers.world.costs().plain_pass},
        verifiers=len(tiers.verifiers),
        drafters=len(tiers.drafters),
        seconds=seconds,
    )


def _follow(tiers: Tiers, verifiers: int) -> None:
    while len(tiers.verifiers) < verifiers:
        tiers.add_verifier()
    while len(tiers.verifiers) > max(verifiers, 1):
        tiers.lose_verifier()


def _rescale(tiers: Tiers, drafters: int, delay: float) -> None:
    """Change the number of drafters. New drafters load their model first."""
    loading = drafters - len(tiers.drafters) - tiers.loading
    for _ in range(max(loading, 0)):
        tiers.load_drafter(delay)
    for _ in range(max(len(tiers.drafters) - drafters, 0)):
        tiers.lose_drafter()
