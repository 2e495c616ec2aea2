"""The automatic draft length with drafter and target on one shared device, in slow motion."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.reports.results import Report
from benchmarks.sections.grid import DRAFTER, LoadedVerifier, took
from benchmarks.sections.grid_cells import Grid, Loaded, Timing
from benchmarks.sections.lab import Lab
from benchmarks.systems.apart import DrafterSpec, StepTime, apart

_TEXT = """\
What [grid](#grid) measures, with a target and a drafter that share one device: one pass runs on it at a time, of either
model. Passes take {factor:g} times what those of an 8B and a 1B model took on one H200 ([gpu](#gpu)), so that the
processors have time to spare and what is compared are decisions: a pass of the target takes {target}, one of the
drafter {drafter}. A slice of {seconds:g} s stands for one of {real:g} s there. The verifier and the drafter are
processes of their own; there is no gateway."""
_VARYING = 3
"""Number of streams below which slices are longer."""


def measure(lab: Lab) -> Report:
    """Measure every cell."""
    scale = replace(
        lab.scale, grid_drafters=("model",), grid_temperatures=("0", "1"), grid_gammas=lab.scale.shared_gammas,
        sessions=lab.scale.shared_sessions,
    )  # fmt: skip
    factor, (seconds, turns, more) = scale.shared_factor, scale.shared_slices
    target, drafter = (StepTime(*(factor * each for each in scale.shared_steps[at : at + 2])) for at in (0, 2))
    text = _TEXT.format(
        factor=factor, target=took(target), drafter=took(drafter), seconds=seconds, real=seconds / factor
    )
    timing = Timing(seconds, turns, seconds, _VARYING, more)
    grid = Grid("shared_device", text, timing, partial(_system, lab, (target, drafter)))
    with Lab(scale) as own:
        return grid.measure(own)


@contextmanager
def _system(lab: Lab, steps: tuple[StepTime, StepTime], _: str) -> Iterator[Loaded]:
    compiled = {"MODEL__COMPILE": str(lab.scale.compiled).lower()}
    with TemporaryDirectory() as folder:
        target, drafter = (replace(step, device=str(Path(folder) / "device")) for step in steps)
        with apart(lab.scale.pair, (target, drafter), {DRAFTER: DrafterSpec(compiled)}, compiled) as system:
            yield LoadedVerifier(system)
