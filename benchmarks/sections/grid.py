"""The draft length that the verifier chooses, against none and against fixed ones, for good drafters and bad."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

from benchmarks.kept import Kept
from benchmarks.machine import environment
from benchmarks.results import Figure, Goal, Report, Table
from benchmarks.run import MIXED, at_temperature
from benchmarks.sections.lab import Lab
from benchmarks.stack import Stack, running
from benchmarks.statistics import Ratio, paired, spread
from specdec.cli.plan import PRELOAD
from specdec.cli.processes import ChildCommand, Children
from specdec.errors import InternalError

_TEXT = """\
Speculation left to the verifier ("auto") against none ("off") and against the best of a few fixed draft lengths, in
slices of {seconds:g} s that take turns on one system, so that a slow moment of the machine meets all of them. In a
slice each stream asks again whenever its answer of {tokens} tokens has ended, and the starts are spread. "Mixed" has
half of its sessions at temperature 0 and half at 1. "Dead" is an address at which nothing listens, "slow" takes 0.1 s
more for each step, and "lying" drafts tokens that it made up and says that it is certain of them. The reason is the one
that most rounds without a draft gave."""
_HEAD = ("drafter", "temperature", "streams", "auto / off", "auto / best fixed", "tokens/s off", "auto", "reason")
_FALLBACK = "specdec_spec_fallback_total/"
_LEAST, _NEAR = 0.97, 0.95
_WARM_UP = 4
"""Slices, in one, before those that count: the verifier learns what this load is like."""
_START_SECONDS = 120.0
"""Within which a faulty drafter starts, and the verifier meets it."""
_STOP_SECONDS = 30.0
_UP = "specdec_drafter_up/"
_Found = TypeVar("_Found")
FAULTS = ("dead", "slow", "lying")


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured at one drafter, temperature and number of streams."""

    drafter: str
    temperature: str
    streams: int
    off: Sequence[float]
    """Tokens a second of each slice."""
    auto: Sequence[float]
    fixed: Sequence[Sequence[float]]
    """The same for each fixed draft length."""
    reason: str

    @property
    def gain(self) -> Ratio:
        """Auto over off."""
        return paired(self.auto, self.off)

    @property
    def near(self) -> float | None:
        """Auto over the best fixed draft length, 0 among them; None where none was tried."""
        if not self.fixed:
            return None
        return min(paired(self.auto, other).value for other in (self.off, *self.fixed))

    def row(self) -> list[str]:
        """The cells of the table's row."""
        near = "" if self.near is None else f"{self.near:.2f}"
        speeds = [f"{spread(each).value:.0f}" for each in (self.off, self.auto)]
        return [self.drafter, self.temperature, str(self.streams), str(self.gain), near, *speeds, self.reason]


def measure(lab: Lab) -> Report:
    """Every cell; each is kept as soon as it is measured, so that a run that was stopped can go on with the rest."""
    kept = Kept.at_commit("grid", resume=lab.scale.resume)
    pairs = product(lab.scale.grid_temperatures, lab.scale.sessions)
    wanted = [(temperature, count) for temperature, count in pairs if temperature != MIXED or count > 1]
    cells = [cell for drafter in lab.scale.grid_drafters for cell in _cells(lab, drafter, wanted, kept)]
    text = _TEXT.format(seconds=lab.scale.grid_seconds, tokens=lab.scale.grid_tokens)
    return Report("grid", text, _figures(cells), [Table(_HEAD, [cell.row() for cell in cells])])


def _cells(lab: Lab, drafter: str, wanted: Sequence[tuple[str, int]], kept: Kept) -> Iterator[Cell]:
    """The cells of one drafter, whose system is started where one of them has not been measured."""
    model, tokens = lab.scale.pair.target.parent.name, lab.scale.grid_tokens
    with ExitStack() as started:
        system = cache(lambda: started.enter_context(_system(lab, drafter)))
        for temperature, streams in wanted:
            key = (model, drafter, temperature, streams, tokens, lab.scale.grid_seconds)
            yield Cell(**kept.once(key, partial(_cell, lab, system, drafter, temperature, streams)))


def _figures(cells: Sequence[Cell]) -> list[Figure]:
    nears = [cell.near for cell in cells if cell.near is not None]
    return [
        _share(f"cells where auto ≥ {_LEAST} of off", [cell.gain.value >= _LEAST for cell in cells], 1.0),
        _share(f"cells where auto ≥ {_NEAR} of the best fixed γ", [near >= _NEAR for near in nears], 0.9),
    ]


def _share(name: str, reached: Sequence[bool], limit: float) -> Figure:
    share, goal = sum(reached) / max(1, len(reached)), Goal(limit)
    return Figure(name, f"{sum(reached)} of {len(reached)}", str(goal), goal.verdict(share))


def _cell(lab: Lab, running_system: Callable[[], Stack], drafter: str, temperature: str, streams: int) -> Cell:
    system = running_system()
    asks = at_temperature(lab.scale.pair.asks(streams, lab.scale.prompt, lab.scale.grid_tokens), temperature)
    gammas = () if drafter in FAULTS else lab.scale.grid_gammas
    ways: list[int | None] = [0, None, *gammas]
    speeds: dict[int | None, list[float]] = {way: [] for way in ways}
    before = system.metrics("verifier")
    system.steady(asks, _WARM_UP * lab.scale.grid_seconds)
    for turn in range(lab.scale.grid_turns):
        for way in ways if turn % 2 else reversed(ways):
            speed = system.steady([replace(ask, gamma=way) for ask in asks], lab.scale.grid_seconds)
            speeds[way].append(speed)
    fixed = tuple(tuple(speeds[gamma]) for gamma in gammas)
    reason = _reason(before, system.metrics("verifier"))
    return Cell(drafter, temperature, streams, tuple(speeds[0]), tuple(speeds[None]), fixed, reason)


def _reason(before: dict[str, float], after: dict[str, float]) -> str:
    counts = {name: after[name] - before.get(name, 0.0) for name in after if name.startswith(_FALLBACK)}
    most = max(counts, key=lambda name: counts[name], default="")
    return most.removeprefix(_FALLBACK) if counts.get(most) else ""


@contextmanager
def _system(lab: Lab, drafter: str) -> Iterator[Stack]:
    """The system with that drafter."""
    if drafter not in FAULTS:
        folder = str(lab.scale.pair.drafter)
        with running(lab.scale.pair, *lab.arguments, "--drafter-kind", drafter, "--drafter", folder) as system:
            yield system
        return
    with running(lab.scale.pair, *lab.arguments, "--drafters", "0") as system, _faulty(system, drafter):
        yield system


@contextmanager
def _faulty(system: Stack, fault: str) -> Iterator[None]:
    """A drafter with that fault, where the system looks for one; none for a dead one."""
    if fault == "dead":
        yield
        return
    argv = (sys.executable, "-m", "benchmarks.faulty", fault, "--config", _offered(system))
    with Children(_STOP_SECONDS) as children:
        children.start(ChildCommand(fault, "drafter", argv, Path(os.devnull), "", PRELOAD["drafter"]), environment())
        _await(lambda: _ready(system), "the verifier did not meet the drafter")
        yield


def _offered(system: Stack) -> str:
    """The configuration that the system offers for a drafter that is started later."""

    def found() -> str | None:
        said = re.search(r"--config (\S+)", system.log.read_text(encoding="utf-8"))
        return said[1] if said else None

    return _await(found, "the system offered no configuration of a drafter")


def _ready(system: Stack) -> bool:
    """Whether the verifier has met a drafter."""
    samples = system.metrics("verifier").items()
    return any(value for name, value in samples if name.startswith(_UP) and name.endswith("/ready"))


def _await(look: Callable[[], _Found | None], failure: str) -> _Found:
    deadline = monotonic() + _START_SECONDS
    while not (found := look()):
        if monotonic() > deadline:
            raise InternalError(failure)
        sleep(0.1)
    return found
