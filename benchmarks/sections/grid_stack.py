"""The automatic draft length with good and bad drafters, with all processes sharing the processors."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

from benchmarks.machine import environment
from benchmarks.reports.results import Report
from benchmarks.run import Ask
from benchmarks.sections.grid_cells import FAULTS, Grid, Loaded, Timing
from benchmarks.sections.lab import Lab
from benchmarks.systems.stack import Stack, running
from specdec.cli.local.plan import PRELOAD
from specdec.cli.local.processes import ChildCommand, Children
from specdec.errors import InternalError

_TEXT = """\
What [grid](#grid) measures, on the whole stack with models as they are: target, drafter, gateway, store and client
share the processors. Slices of {seconds:g} s, longer where fewer than six streams draft, take turns on one system.
Cells of the dead drafter show how far a cell errs: auto is off there, and every difference is the machine's. In a slice
each stream asks for another text whenever its answer of {tokens} tokens has ended, and the starts are spread. "Mixed"
has half of its sessions at temperature 0 and half at 1, and bursts of prompts beside them. "Dead" is an address at
which nothing listens, "slow" takes 0.1 s more for each step, and "lying" drafts tokens that it made up and says that it
is certain of them. The reason is the one that most rounds without a draft gave."""
_FALLBACK = "specdec_spec_fallback_total/"
_WARM_UP = 4
"""Warm-up slices, run as one, in which the verifier adapts to the load."""
_VARYING = 6
"""Number of streams below which slices are longer."""
_START_SECONDS = 120.0
"""Seconds within which a faulty drafter starts and the verifier meets it."""
_STOP_SECONDS = 30.0
_UP = "specdec_drafter_up/"
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class LoadedStack:
    """The whole stack."""

    stack: Stack

    def steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask]) -> float:
        """Return the tokens a second under a steady load."""
        return self.stack.steady(asks, streams, seconds, burst)

    def reasons(self) -> dict[str, float]:
        """Return the number of rounds without drafts so far, by reason."""
        samples = self.stack.metrics("verifier").items()
        return {name.removeprefix(_FALLBACK): value for name, value in samples if name.startswith(_FALLBACK)}


def measure(lab: Lab) -> Report:
    """Measure every cell."""
    seconds = lab.scale.grid_seconds
    timing = Timing(seconds, lab.scale.grid_turns, _WARM_UP * seconds, _VARYING)
    text = _TEXT.format(seconds=seconds, tokens=lab.scale.grid_tokens)
    return Grid("grid_stack", text, timing, partial(_system, lab)).measure(lab)


@contextmanager
def _system(lab: Lab, drafter: str) -> Iterator[Loaded]:
    """Run the system with that drafter."""
    if drafter not in FAULTS:
        folder = str(lab.scale.pair.drafter)
        with running(lab.scale.pair, *lab.arguments, "--drafter-kind", drafter, "--drafter", folder) as system:
            yield LoadedStack(system)
        return
    with running(lab.scale.pair, *lab.arguments, "--drafters", "0") as system, _faulty(system, drafter):
        yield LoadedStack(system)


@contextmanager
def _faulty(system: Stack, fault: str) -> Iterator[None]:
    """Run a drafter with that fault at the address expected by the system, or none for a dead one."""
    if fault == "dead":
        yield
        return
    argv = (sys.executable, "-m", "benchmarks.systems.faulty", fault, "--config", _offered(system))
    with Children(_STOP_SECONDS) as children:
        children.start(ChildCommand(fault, "drafter", argv, Path(os.devnull), "", PRELOAD["drafter"]), environment())
        _await(lambda: _ready(system), "the verifier did not meet the drafter")
        yield


def _offered(system: Stack) -> str:
    """Return the configuration that the system offers for a drafter started later."""

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
