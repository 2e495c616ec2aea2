"""Verifier and drafter as two processes on one device, compared with both in one process, in turn."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from benchmarks.drafters import load_drafter
from benchmarks.gpu.setup import Setup
from benchmarks.in_turns import InTurns
from benchmarks.local import load
from benchmarks.pair import Pair
from benchmarks.reports.results import Report, Table, figure
from benchmarks.reports.statistics import Ratio, paired, spread
from benchmarks.run import Ask, pace
from benchmarks.systems.apart import DrafterSpec, StepTime, apart

_TEXT = """\
Speculation with drafts of {gamma} tokens at temperature 0, with the models of [gpu_stack](#gpu_stack) on one device.
"Two processes" are a verifier and a drafter, which share the device and speak gRPC; "in turns" is one process that
drafts for all streams and then verifies all drafts. There is no gateway and no store. A stream has one answer of
{tokens} tokens in a turn, and what is compared are its tokens per second after the first round, of all streams
together, in {turns} turns."""
_GAMMA = 4
_DRAFTER = "drafter"


@dataclass(frozen=True, slots=True)
class Inside:
    """The pair in one process."""

    pair: Pair
    compiled: bool

    def speeds(self, slices: Sequence[Sequence[Ask]]) -> list[float]:
        """Return the tokens a second of all streams together, for each slice."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_speeds, self, slices).result()


def _speeds(inside: Inside, slices: Sequence[Sequence[Ask]]) -> list[float]:
    target = load(inside.pair.target, "bfloat16", compiled=inside.compiled)
    drafter = load_drafter("model", inside.pair.drafter, dtype="bfloat16", compiled=inside.compiled)
    found = list[float]()
    for asks in slices:
        turns = InTurns(target, drafter, _GAMMA, most=len(asks))
        found.append(sum(pace(each.times, each.counts) for each in turns.run(asks)))
    return found


def measure(setup: Setup) -> Iterator[Report]:
    """Measure both arrangements at each number of streams."""
    pair, streams = setup.padded(), (1, 2) if setup.quick else (1, 16)
    turns, tokens = (1, 24) if setup.quick else (3, 128)
    slices = [
        [replace(ask, gamma=_GAMMA) for ask in pair.asks(count, 64, tokens, first=turn * count)]
        for count in streams
        for turn in range(turns + 1)
    ]
    inside = Inside(pair, setup.compiled).speeds(slices)
    settings = {"MODEL__DTYPE": "bfloat16", "MODEL__COMPILE": str(setup.compiled).lower()}
    with apart(pair, (StepTime(0.0), StepTime(0.0)), {_DRAFTER: DrafterSpec(settings)}, settings) as system:
        outside = [sum(system.together(asks, _DRAFTER).paces) for asks in slices]
    rows, figures = list[list[str]](), []
    for at, count in enumerate(streams):
        kept = slice(at * (turns + 1) + 1, (at + 1) * (turns + 1))
        ratio = paired(outside[kept], inside[kept])
        figures.append(figure(f"two processes / in turns, {count} streams", ratio))
        rows.append([str(count), *(_speed(each[kept]) for each in (inside, outside)), str(ratio)])
    text = _TEXT.format(gamma=_GAMMA, tokens=tokens, turns=turns)
    head = ("streams", "tokens/s in turns", "tokens/s of two processes", "two processes / in turns")
    yield Report("gpu_processes", text, figures, [Table(head, rows)])


def _speed(speeds: Sequence[float]) -> str:
    found: Ratio = spread(speeds)
    return f"{found.value:.0f}"
