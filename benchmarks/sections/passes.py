"""What one pass of the target costs: by tokens verified, by sessions, by context; and how fast a prompt is read."""

import time
from collections.abc import Callable, Sequence

from benchmarks.local import load
from benchmarks.results import Figure, Report
from benchmarks.sections.scale import Scale
from benchmarks.statistics import paired, spread
from specdec.engine import Chunk, Engine

_PASSES = 12


def measure(scale: Scale) -> Report:
    """Ratios to the pass over one token of one session at the shortest context."""
    engine = load(scale.pair.target)
    verify = _table(engine, [(1, count, scale.contexts[0]) for count in range(1, 9)], scale)
    sessions = _table(engine, [(count, 1, scale.contexts[0]) for count in scale.sessions], scale)
    contexts = _table(engine, [(1, 1, length) for length in scale.contexts], scale)
    figures = [
        *(Figure("passes", f"verify {count} tokens / 1", text) for (_, count, _), text, _ in verify[1:]),
        *(Figure("passes", f"step of {count} sessions / 1", text) for (count, _, _), text, _ in sessions[1:]),
        *(
            Figure("passes", f"step at context {at} / {scale.contexts[0]}", text)
            for (_, _, at), text, _ in contexts[1:]
        ),
        Figure("passes", "prompt tokens read in the time of a step", _prefill(engine, scale)),
    ]
    curves = {
        "tokens of one session": [(float(case[1]), value) for case, _, value in verify],
        "sessions of one token": [(float(case[0]), value) for case, _, value in sessions],
    }
    return Report("passes", figures, curves)


Case = tuple[int, int, int]
"""Sessions, tokens of each, context."""


def _table(engine: Engine, cases: Sequence[Case], scale: Scale) -> list[tuple[Case, str, float]]:
    """Each case over the first, its passes made in turn with those of the others."""
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
    ratios = [paired(times, seconds[0]) for times in seconds]
    return [(case, str(ratio), ratio.value) for case, ratio in zip(cases, ratios, strict=True)]


def _step(engine: Engine, case: Case) -> None:
    engine.forward([Chunk(name, [7] * case[1], case[1]) for name in _names(case)])
    for name in _names(case):
        engine.truncate(name, case[2])


def _names(case: Case) -> list[str]:
    return [f"{case}/{number}" for number in range(case[0])]


def _prefill(engine: Engine, scale: Scale) -> str:
    """Tokens of the longest context over (seconds to read it / seconds of a step)."""
    length = scale.contexts[-1]
    engine.admit("prompt", length + 1)
    engine.reserve("prompt", length + 1)
    shares = list[float]()
    for _ in range(scale.repeats + 1):
        read = _seconds(lambda: engine.forward([Chunk("prompt", [5] * length, 1)]))
        engine.truncate("prompt", 1)
        step = _seconds(lambda: engine.forward([Chunk("prompt", [5], 1)]))
        engine.truncate("prompt", 0)
        shares.append(length * step / read)
    engine.release("prompt")
    return str(spread(shares[1:]))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
