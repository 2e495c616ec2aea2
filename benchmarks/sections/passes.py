"""Cost of one pass of the target, by tokens verified, by sessions, and by context."""

import time
from collections.abc import Callable, Sequence

from benchmarks.local import load
from benchmarks.reports.results import Chart, Report, figure
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.sections import anatomy
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import Scale
from specdec.engine import Chunk, NativeEngine

_PASSES = 12


_TEXT = """\
The target's pass alone, in process, on one thread: the cost of one more token to verify, one more session and a longer
context, relative to a pass over one token of one session at the shortest context. The table splits a pass into the
products with the model's weights, measured alone, and the rest: attention, norms, rotary embeddings and the
interpreter. PyTorch's products take turns with ours. The ceiling is the speed of many sessions if each pass were full,
every draft were accepted, no prompt had to be read, and no time passed between passes."""


def measure(lab: Lab) -> Report:
    """Measure ratios to the cheapest pass."""
    scale = lab.scale
    engine = load(scale.pair.target, compiled=scale.compiled)
    short = scale.contexts[0]
    verify = _table(engine, [(1, count, short) for count in range(1, 9)], scale)
    sessions = _table(engine, [(count, 1, short) for count in scale.sessions], scale)
    contexts = _table(engine, [(1, 1, length) for length in scale.contexts], scale)
    ceiling, parts = anatomy.measure(lab, engine)
    figures = [
        ceiling,
        *(figure(f"verify {count} tokens / 1", ratio) for (_, count, _), ratio in verify[1:]),
        *(figure(f"step of {count} sessions / 1", ratio) for (count, _, _), ratio in sessions[1:]),
        *(figure(f"step at context {at} / {short}", ratio) for (_, _, at), ratio in contexts[1:]),
    ]
    return Report(
        "passes",
        _TEXT,
        figures,
        [parts],
        charts=[
            _chart("verify", "tokens of one session", [(case[1], ratio) for case, ratio in verify]),
            _chart("batch", "sessions of one token", [(case[0], ratio) for case, ratio in sessions]),
            _chart("context", "tokens of context", [(case[2], ratio) for case, ratio in contexts]),
        ],
    )


def _chart(name: str, x: str, points: Sequence[tuple[int, Ratio]]) -> Chart:
    return Chart(name, x, "cost of a pass", {"target": [(float(at), ratio.value) for at, ratio in points]})


Case = tuple[int, int, int]
"""Number of sessions, tokens of each, and context."""


def _table(engine: NativeEngine, cases: Sequence[Case], scale: Scale) -> list[tuple[Case, Ratio]]:
    """Measure each case relative to the first. The passes of all cases run in turn."""
    seconds: list[list[float]] = [[] for _ in cases]
    for case in cases:
        for name in _names(case):
            engine.admit(name, case[2] + case[1])
            engine.reserve(name, case[2] + case[1])
            engine.forward([Chunk(name, [5] * case[2], 0)])
    for turn in range(scale.repeats * _PASSES + 2):
        for case, times in zip(cases, seconds, strict=True):
            spent = _seconds(lambda case=case: _step(engine, case))  # type: ignore[misc]
            if turn > 1:
                times.append(spent)
    for case in cases:
        for name in _names(case):
            engine.release(name)
    return [(case, paired(times, seconds[0])) for case, times in zip(cases, seconds, strict=True)]


def _step(engine: NativeEngine, case: Case) -> None:
    engine.forward([Chunk(name, [7] * case[1], case[1]) for name in _names(case)])
    for name in _names(case):
        engine.truncate(name, case[2])


def _names(case: Case) -> list[str]:
    return [f"{case}/{number}" for number in range(case[0])]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
