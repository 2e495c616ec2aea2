"""The cells of a grid: the automatic draft length, against no drafts and against fixed lengths."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Protocol

from benchmarks.reports.kept import Kept
from benchmarks.reports.results import Figure, Goal, Report, Table
from benchmarks.reports.statistics import Ratio, error_of_sums, paired, spread
from benchmarks.run import MIXED, Ask, at_temperature
from benchmarks.sections.lab import Lab

_HEAD = ("drafter", "temperature", "streams", "auto / off", "auto / best fixed", "tokens/s off", "auto", "reason")
_LEAST, _NEAR = 0.97, 0.95
_CLEAR = 3.0
"""Distance of auto / off from its goal, in standard errors, at which a cell needs no more turns."""
_TURN_ERROR = 0.01
"""Least standard error of a turn's ratio, about the difference between turns with a dead drafter, where auto is off."""
FAULTS = ("dead", "slow", "lying")
_ANSWERS = 12
"""Number of distinct answers for each stream in a slice, more than it can read."""


class Loaded(Protocol):
    """A system under steady loads."""

    def steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask]) -> float:
        """Return the tokens a second of `streams` clients in a loop, and of additional bursts."""

    def reasons(self) -> Mapping[str, float]:
        """Return the number of rounds without drafts so far, by reason."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of a cell's measurement."""

    seconds: float
    """Seconds of a slice of many streams."""
    turns: int
    """Number of slices of each setting."""
    warm_up: float
    """Warm-up seconds, in which the verifier adapts to the load."""
    varying: int
    """Number of streams below which slices are longer, because the drafts of few streams make the speed vary."""
    more: int = 0
    """Largest number of additional turns of auto and off while it is unclear whether auto reaches the goal."""

    def slice(self, drafter: str, streams: int) -> float:
        """Return the seconds of a slice."""
        return self.seconds * (1.0 if drafter in FAULTS else max(1.0, self.varying / streams))


@dataclass(frozen=True, slots=True)
class Cell:
    """Measurements for one drafter, temperature and number of streams."""

    drafter: str
    temperature: str
    streams: int
    off: Sequence[float]
    """Tokens a second of each slice."""
    auto: Sequence[float]
    fixed: Sequence[Sequence[float]]
    """Tokens a second of each slice, for each fixed draft length."""
    reason: str

    @property
    def gain(self) -> Ratio:
        """Auto divided by off, over all slices, with the middle half of the turns."""
        turns = paired(self.auto, self.off)
        return replace(turns, value=sum(self.auto) / sum(self.off))

    @property
    def near(self) -> float | None:
        """Auto divided by the best fixed draft length or 0, in turns that had all of them. None if none was tried."""
        if not self.fixed:
            return None
        turns = len(self.fixed[0])
        return sum(self.auto[:turns]) / max(map(sum, (self.off[:turns], *self.fixed)))

    def row(self) -> list[str]:
        """The cells of the table's row."""
        near = "" if self.near is None else f"{self.near:.2f}"
        speeds = [f"{spread(each).value:.0f}" for each in (self.off, self.auto)]
        return [self.drafter, self.temperature, str(self.streams), str(self.gain), near, *speeds, self.reason]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of drafters, temperatures and numbers of streams."""

    section: str
    text: str
    timing: Timing
    system: Callable[[str], AbstractContextManager[Loaded]]
    """Starts a system with the drafter of that name."""

    def measure(self, lab: Lab) -> Report:
        """Measure every cell and return one report."""
        return self.report(self.cells(lab))

    def report(self, cells: Sequence[Cell]) -> Report:
        """Return the cells and the share of them that reach each goal."""
        return Report(self.section, self.text, _figures(cells), [Table(_HEAD, [cell.row() for cell in cells])])

    def cells(self, lab: Lab) -> list[Cell]:
        """Return every cell. Each is stored once measured, so that a stopped run can resume."""
        kept = Kept.at_commit(self.section, resume=lab.scale.resume)
        pairs = product(lab.scale.grid_temperatures, lab.scale.sessions)
        wanted = [(temperature, count) for temperature, count in pairs if temperature != MIXED or count > 1]
        return [cell for drafter in lab.scale.grid_drafters for cell in self._cells(lab, drafter, wanted, kept)]

    def _cells(self, lab: Lab, drafter: str, wanted: Sequence[tuple[str, int]], kept: Kept) -> Iterator[Cell]:
        """Yield the cells of one drafter. Start its system only if one of them has not been measured."""
        model, tokens = lab.scale.pair.target.parent.name, lab.scale.grid_tokens
        with ExitStack() as started:
            system = cache(lambda: started.enter_context(self.system(drafter)))
            for temperature, streams in wanted:
                key = (model, drafter, temperature, streams, tokens, self.timing.seconds)
                yield Cell(**kept.once(key, partial(self.cell, lab, system, drafter, temperature, streams)))

    def cell(self, lab: Lab, running: Callable[[], Loaded], drafter: str, temperature: str, streams: int) -> Cell:
        """Measure one cell."""
        system, pair = running(), lab.scale.pair
        prompts, length = lab.scale.grid_burst if temperature == MIXED else (0, 0)

        def loaded(turn: int, seconds: float, gamma: int | None = None) -> float:
            """Return the tokens a second of a slice. Prompts are equal within a turn and differ between turns."""
            sizes = (streams * _ANSWERS, lab.scale.grid_tokens), (prompts, length)
            found = [pair.asks(count, lab.scale.prompt, tokens, first=turn * count) for count, tokens in sizes]
            asks, burst = ([replace(ask, gamma=gamma) for ask in at_temperature(some, temperature)] for some in found)
            return system.steady(asks, streams, seconds, burst)

        def measured(turn: int, gamma: int | None) -> float:
            return at_least_one(partial(loaded, turn, gamma=gamma), self.timing.slice(drafter, streams))

        gammas = () if drafter in FAULTS else lab.scale.grid_gammas
        ways: list[int | None] = [0, None, *gammas]
        speeds: dict[int | None, list[float]] = {way: [] for way in ways}
        before = system.reasons()
        loaded(0, self.timing.warm_up)
        for turn in range(self.timing.turns + self.timing.more):
            if turn >= self.timing.turns:
                if clear(speeds[None], speeds[0]):
                    break
                ways = [0, None]
            for way in ways if turn % 2 else reversed(ways):
                speeds[way].append(measured(1 + turn, way))
        fixed = tuple(tuple(speeds[gamma]) for gamma in gammas)
        reason = _reason(before, system.reasons())
        return Cell(drafter, temperature, streams, tuple(speeds[0]), tuple(speeds[None]), fixed, reason)


def at_least_one(speed: Callable[[float], float], seconds: float) -> float:
    """Return the tokens a second of a slice. A slice without any token is repeated with twice the length."""
    while not (found := speed(seconds)):
        seconds *= 2
    return found


def clear(auto: Sequence[float], off: Sequence[float]) -> bool:
    """Whether auto clearly reaches its goal or clearly does not."""
    error = max(error_of_sums(auto, off), _TURN_ERROR / math.sqrt(len(off)))
    return abs(sum(auto) / sum(off) - _LEAST) >= _CLEAR * error


def _figures(cells: Sequence[Cell]) -> list[Figure]:
    nears = [cell.near for cell in cells if cell.near is not None]
    return [
        _share(f"cells where auto ≥ {_LEAST} of off", [cell.gain.value >= _LEAST for cell in cells], 1.0),
        _share(f"cells where auto ≥ {_NEAR} of the best fixed γ", [near >= _NEAR for near in nears], 0.9),
    ]


def _share(name: str, reached: Sequence[bool], limit: float) -> Figure:
    share, goal = sum(reached) / max(1, len(reached)), Goal(limit)
    return Figure(name, f"{sum(reached)} of {len(reached)}", str(goal), goal.verdict(share))


def _reason(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    counts = {name: after[name] - before.get(name, 0.0) for name in after}
    most = max(counts, key=lambda name: counts[name], default="")
    return most if counts.get(most) else ""
