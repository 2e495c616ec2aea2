"""The whole system on one GPU, with the demo pair at the cost of an 8B and a 1B model: host path and draft length.

Nothing is downloaded: both models are padded, which does not change what they compute.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.gpu.setup import Setup
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, spread
from benchmarks.sections.grid_cells import Cell, Grid, Loaded, Timing, at_least_one
from benchmarks.sections.grid_stack import LoadedStack
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale
from benchmarks.systems.stack import Stack, running

_SYSTEM = """\
`specdec up --compile --dtype bfloat16` with both models on one GPU, which they share in turns. They are the demo pair,
padded with weights that change nothing to the size of Llama 3.1 8B and Llama 3.2 1B: their drafts are as good as the
demo's are, and passes take what those of such models take, but for verdicts, which look at 2,048 ids. """
_GRID = """\
Slices of {seconds:g} s take turns on one system, longer ones where fewer than three streams draft; in a slice each
stream asks for another text whenever its answer of {tokens} tokens has ended, and the starts are spread."""
_HOST = """\
Nothing is drafted. A step is the time from one token of a stream to its next, and a pass what the verifier measures for
one pass of the target; what passes allow is a token of each stream a pass. The rest of a step is the host's. Figures
are the medians of {turns} slices of {seconds:g} s."""
_VARYING = 3
_GOALS = {("0", 1): 1.5, ("0", 4): 1.5, ("0", 16): 1.2}
"""Goals for auto / off, by temperature and streams."""
_PASS = "specdec_verify_pass_seconds"
_HOST_STREAMS = (1, 16, 32, 64, 256)
_HOST_GOALS = (32, 256)
"""Numbers of streams with a goal for the share of what passes allow."""


def measure(setup: Setup) -> Iterator[Report]:
    """Measure plain decoding against its passes, then auto, off and a fixed draft length."""
    pair = setup.padded()
    scale = replace(
        Scale(pair), grid_drafters=("model",), grid_temperatures=("0", "1"), grid_gammas=(4,), grid_turns=3,
        grid_seconds=0.6, learning=3.0, sessions=(1, 4, 16, 32, 64), compiled=setup.compiled, resume=setup.resume,
    )  # fmt: skip
    if setup.quick:
        scale = replace(
            scale, sessions=(1, 2), grid_tokens=8, grid_turns=1, grid_seconds=0.3, learning=0.0,
            grid_temperatures=("0",),
        )  # fmt: skip
    with running(pair, *setup.arguments, **setup.variables) as system:
        yield _host_path(scale, system, (1, 2) if setup.quick else _HOST_STREAMS)
        with Lab(scale) as lab:
            yield _grid(lab, system)


@dataclass(frozen=True, slots=True)
class HostCell:
    """Plain decoding of a number of streams, in several slices."""

    streams: int
    speeds: Sequence[float]
    """Tokens a second of each slice."""
    passes: Sequence[float]
    """Mean seconds of a pass."""

    @property
    def share(self) -> Ratio:
        """Tokens a second divided by what passes allow, which is also the share of the pass in a step."""
        pairs = zip(self.speeds, self.passes, strict=True)
        return spread([speed * seconds / self.streams for speed, seconds in pairs])

    def row(self) -> list[str]:
        """The cells of the table's row."""
        speed, seconds = spread(self.speeds).value, spread(self.passes).value
        step = 1000 * self.streams / speed
        return [
            str(self.streams), f"{speed:.0f}", f"{self.streams / seconds:.0f}", str(self.share), f"{step:.2f}",
            f"{1000 * seconds:.2f}",
        ]  # fmt: skip


def _host_path(scale: Scale, system: Stack, streams: Sequence[int]) -> Report:
    cells = [_host_cell(scale, system, count) for count in streams]
    figures = [
        figure(f"off: share of what passes allow, {cell.streams} streams", cell.share, Goal(0.85))
        if cell.streams in _HOST_GOALS
        else figure(f"off: share of what passes allow, {cell.streams} streams", cell.share)
        for cell in cells
    ]
    head = ("streams", "tokens/s off", "passes allow", "share", "step, ms", "pass, ms")
    text = _SYSTEM + _HOST.format(turns=scale.grid_turns, seconds=2 * scale.grid_seconds)
    return Report("gpu_host", text, figures, [Table(head, [cell.row() for cell in cells])])


def _host_cell(scale: Scale, system: Stack, streams: int) -> HostCell:
    """Measure one cell. Its first slice is a warm-up."""
    speeds, passes = list[float](), list[float]()
    for turn in range(scale.grid_turns + 1):
        asks = scale.pair.asks(4 * streams, scale.prompt, scale.grid_tokens, first=4 * turn * streams)
        before = _passes(system)
        plain = partial(system.steady, [replace(ask, gamma=0) for ask in asks], streams)
        speeds.append(at_least_one(plain, 2 * scale.grid_seconds))
        seconds, count = (now - then for now, then in zip(_passes(system), before, strict=True))
        passes.append(seconds / max(1.0, count))
    return HostCell(streams, speeds[1:], passes[1:])


def _passes(system: Stack) -> tuple[float, float]:
    """Return the seconds of all passes so far, and their number."""
    samples = system.metrics("verifier")
    return samples.get(f"{_PASS}_sum", 0.0), samples.get(f"{_PASS}_count", 0.0)


def _grid(lab: Lab, system: Stack) -> Report:
    scale = lab.scale
    timing = Timing(scale.grid_seconds, scale.grid_turns, scale.learning, _VARYING)
    text = _SYSTEM + _GRID.format(seconds=scale.grid_seconds, tokens=scale.grid_tokens)
    grid = Grid("gpu_stack", text, timing, partial(_loaded, system))
    cells = grid.cells(lab)
    report = grid.report(cells)
    return replace(report, figures=[*report.figures, *_gains(cells)])


@contextmanager
def _loaded(system: Stack, _: str) -> Iterator[Loaded]:
    yield LoadedStack(system)


def _gains(cells: Sequence[Cell]) -> Iterator[Figure]:
    for cell in cells:
        if goal := _GOALS.get((cell.temperature, cell.streams)):
            where = f"temperature {cell.temperature}, {cell.streams} streams"
            yield figure(f"auto / off, {where}", cell.gain, Goal(goal))
