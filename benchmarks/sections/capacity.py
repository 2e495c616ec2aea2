"""Client capacity of a verifier with separate drafters, against one process that drafts and verifies in turns."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.clients import Clients, count_clients
from benchmarks.in_turns import Place
from benchmarks.reports.kept import Kept
from benchmarks.reports.results import Chart, Figure, Goal, Report, Table
from benchmarks.run import Ask
from benchmarks.sections.lab import Lab
from benchmarks.systems.apart import DrafterSpec, StepTime, apart

_TEXT = """\
Number of clients that each get a promised speed: a verifier with two drafters as separate processes, against our engine
with the drafter inside. In the latter, one thread drafts γ tokens for a batch and then judges them, without services.
The promised speed is half of that of one client alone at the engine with the drafter inside. Models are slowed: a pass
takes a fixed time for a limited number of sessions, so more sessions take turns (`step_sessions`). A drafter's step
holds as many sessions as a target's pass, and nothing is drafted ahead.

With more clients than a pass holds, the target limits both. In one process it is idle while drafts are made; with
separate drafters it is not, because other sessions have drafts by then. So separate drafters serve up to 1 + γ·t_d/t_v
times as many clients. This holds for drafters with accelerators of their own, whose cost is not counted, and for full
passes. With few clients, both ways do the same work in a round. All clients have the same prompt at temperature 0, so
acceptance is the same everywhere; γ = 4."""
_HEAD = (
    "γ·t_d/t_v", "t_d, ms", "t_v, ms", "promised tokens/s", "clients in turns", "clients apart", "apart / in turns",
    "1 + γ·t_d/t_v",
)  # fmt: skip
_TRIED = ("γ·t_d/t_v", "way", "clients: tokens/s of the slowest")
_GAMMA = 4
_SHARE = 0.5
"""Promised speed, as a share of the speed of a single client."""
_LEAST = 0.9
_AROUND = (0.8, 1.1)
"""First bounds of the search, as factors of the number of clients by the formula."""
_DRAFTERS = ("one", "two")
_PATIENCE = "10"
"""Longest wait of a round for its draft in seconds, so that drafts rather than timeouts are measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """Result for one ratio between the duration of a round's drafts and that of a target pass."""

    cost: float
    """γ·t_d/t_v."""
    turns: Clients
    apart: Clients

    @property
    def ratio(self) -> float:
        """Clients with separate drafters divided by clients in turns."""
        return self.apart.most / max(1, self.turns.most)

    @property
    def bound(self) -> float:
        """Upper bound of the ratio."""
        return 1 + self.cost


def measure(lab: Lab) -> Report:
    """Measure both arrangements at every cost of drafts. Each is stored, so that a stopped run can resume."""
    kept, scale = Kept.at_commit("capacity", resume=lab.scale.resume), lab.scale
    points = list[Point]()
    for cost in scale.capacity_costs:
        key = (scale.pair.target.parent.name, cost, scale.capacity_step)
        found = kept.once(key, partial(_point, lab, cost))
        points.append(Point(cost, _clients(found["turns"]), _clients(found["apart"])))
    rows = [_row(point, lab.scale.capacity_step) for point in points]
    tried = [
        [f"{point.cost:g}", way, _speeds(found)]
        for point in points
        for way, found in (("in turns", point.turns), ("apart", point.apart))
    ]
    figures = [_figure(point) for point in points]
    return Report("capacity", _TEXT, figures, [Table(_HEAD, rows), Table(_TRIED, tried)], [_chart(points)])


def _point(lab: Lab, cost: float) -> Point:
    scale = lab.scale
    (ask,) = scale.pair.asks(1, scale.prompt // 4, scale.capacity_tokens)
    ask = replace(ask, gamma=_GAMMA)
    steps, most = (scale.capacity_step, cost * scale.capacity_step / _GAMMA), scale.capacity_rows
    full = most / _SHARE
    turns = Place(scale.pair, steps, _GAMMA, most).clients(ask, _SHARE, _around(full))
    served = _apart(lab, steps, ask, turns.promise, _around(full * (1 + cost)))
    return Point(cost, turns, served)


def _around(count: float) -> tuple[int, int]:
    low, high = _AROUND
    return max(1, math.floor(low * count)), math.ceil(high * count)


def _apart(lab: Lab, steps: tuple[float, float], ask: Ask, promise: float, bounds: tuple[int, int]) -> Clients:
    most = {"STEP_SESSIONS": str(lab.scale.capacity_rows)}
    drafters = dict.fromkeys(_DRAFTERS, DrafterSpec({**most, "AHEAD": "0"}))
    settings = {**most, "DRAFTING__TIMEOUT": _PATIENCE}
    target, drafter = steps
    with apart(lab.scale.pair, (StepTime(target), StepTime(drafter)), drafters, settings) as system:
        system.together([ask] * lab.scale.capacity_rows, *_DRAFTERS)  # each drafter has met its first sessions
        return count_clients(lambda count: system.together([ask] * count, *_DRAFTERS).slowest, promise, bounds)


def _clients(kept: dict[str, Any]) -> Clients:
    return Clients(kept["promise"], {int(count): speed for count, speed in kept["slowest"].items()})


def _figure(point: Point) -> Figure:
    goal = Goal(round(_LEAST * point.bound, 3))
    name = f"clients apart / in turns, γ·t_d/t_v = {point.cost:g}"
    return Figure(name, f"{point.ratio:.2f}", str(goal), goal.verdict(point.ratio))


def _row(point: Point, step: float) -> list[str]:
    times = [f"{1000 * point.cost * step / _GAMMA:.3g}", f"{1000 * step:g}", f"{point.turns.promise:.1f}"]
    counts = [str(point.turns.most), str(point.apart.most)]
    return [f"{point.cost:g}", *times, *counts, f"{point.ratio:.2f}", f"{point.bound:.2f}"]


def _speeds(found: Clients) -> str:
    return ", ".join(f"{count}: {speed:.1f}" for count, speed in sorted(found.slowest.items()))


def _chart(points: list[Point]) -> Chart:
    curves = {
        "in turns": [(point.cost, float(point.turns.most)) for point in points],
        "apart": [(point.cost, float(point.apart.most)) for point in points],
        "apart, predicted": [(point.cost, point.turns.most * point.bound) for point in points],
    }
    return Chart("capacity", "γ·t_d/t_v", "clients with the promised tokens/s", curves)
