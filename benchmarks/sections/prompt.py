"""Prefill speed: the time to the first token, by the prompt's length."""

from benchmarks.peers.turns import Fixed, Runs, agreement, interleave, ratio
from benchmarks.reports.results import Chart, Figure, Report, Table, figure
from benchmarks.reports.statistics import spread
from benchmarks.sections.engine import PLAIN
from benchmarks.sections.lab import HF, Lab
from benchmarks.sections.stack import STACK_PLAIN

_TEXT = (
    "One token of output, so what is timed is the reading of the prompt and, for the stack, all that comes before it."
)


def measure(lab: Lab) -> Report:
    """Measure ratios for each length, and prompt tokens a second."""
    peers = {HF: lab.hugging_face()[HF], PLAIN: Fixed(lab.engine(), 0), STACK_PLAIN: Fixed(lab.system(), 0)}
    found = {
        length: interleave(peers, lab.scale.pair.asks(lab.scale.asks, length, 1), lab.scale.repeats)
        for length in lab.scale.contexts
    }
    figures = [each for length, runs in found.items() for each in _figures(length, runs)]
    rows = [(name, *(_times(runs, name, length) for length, runs in found.items())) for name in peers]
    table = Table(("ms to the first token (prompt tokens/s)", *map(str, found)), rows)
    curves = {name: [(float(length), _first(runs, name)) for length, runs in found.items()] for name in peers}
    return Report("prompt", _TEXT, figures, [table], [Chart("prompt", "tokens of the prompt", "ms", curves)])


def _figures(length: int, runs: Runs) -> list[Figure]:
    same = agreement(runs)
    return [
        *(figure(f"prompt of {length}: {one} / {HF}", ratio(runs, one, HF)) for one in (PLAIN, STACK_PLAIN)),
        Figure(f"prompt of {length}: {same.name}", same.value, same.goal, same.reached),
    ]


def _times(runs: Runs, name: str, length: int) -> str:
    first = _first(runs, name)
    return f"{first:.1f} ({1000 * length / first:,.0f})"


def _first(runs: Runs, name: str) -> float:
    """Return the milliseconds of a run of one token."""
    return 1000 * spread([run.first for run in runs[name]]).value
