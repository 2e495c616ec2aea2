"""One phase of `make gpu` in its own process: `python -m benchmarks.gpu.phase NAME SETUP ABOUT`."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.gpu import checks, engine, processes, stack, vllm
from benchmarks.gpu.setup import Setup
from benchmarks.reports.pages import REPOSITORY, Places, publish
from benchmarks.reports.results import Report
from specdec.errors import SpecdecError


@dataclass(frozen=True, slots=True)
class Phase:
    """Sections measured in one process."""

    sections: tuple[str, ...]
    seconds: float
    """Seconds after which the phase is stopped. A whole run has nine minutes."""
    measure: Callable[[Setup], Iterator[Report]]


PHASES: Mapping[str, Phase] = {
    "tests": Phase(("gpu_tests",), 100.0, checks.measure),
    "engine": Phase(("gpu",), 100.0, engine.measure),
    "stack": Phase(("gpu_host", "gpu_stack"), 240.0, stack.measure),
    "vllm": Phase(("gpu_vllm",), 120.0, vllm.measure),
    "processes": Phase(("gpu_processes",), 110.0, processes.measure),
}
"""Phases in the order of their value."""


def main(name: str, setup: Setup, out: str) -> int:
    """Publish each report of the phase as soon as it is measured. Return the exit status."""
    places, load = Places.below(Path(out)) if out else REPOSITORY, machine.load()
    started = time.monotonic()
    try:
        for report in PHASES[name].measure(setup):
            seconds = round(time.monotonic() - started)
            publish(report, "python -m benchmarks.gpu_all", places, load=load, quick=setup.quick, seconds=seconds)
            started = time.monotonic()
    except SpecdecError as error:
        sys.stderr.write(f"{name}: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Setup(**json.loads(sys.argv[2])), sys.argv[3]))
