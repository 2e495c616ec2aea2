"""Many sessions at once through the whole system: speculation on and off, and against `generate()` in sequence."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.peers import Process
from benchmarks.results import Figure, Report
from benchmarks.run import Ask, Peer, Run
from benchmarks.sections.engine import spec
from benchmarks.sections.scale import Scale
from benchmarks.stack import Stack, running
from benchmarks.statistics import paired, spread
from specdec.errors import InternalError


def measure(scale: Scale) -> Report:
    """Tokens a second of all sessions together."""
    figures, on_curve, off_curve = list[Figure](), list[tuple[float, float]](), list[tuple[float, float]]()
    with running(scale.pair) as system, Process(spec(scale, "hf-assisted")) as peer:
        for sessions in scale.sessions:
            asks = scale.pair.asks(sessions, scale.prompt, scale.tokens)
            off, on, serial = _turns(system, peer, asks, scale.repeats, compare=sessions == min(16, scale.sessions[-1]))
            goal = "≥ 0.97" if sessions == 32 else ""
            figures.append(Figure("concurrency", f"{sessions} sessions, on / off", str(paired(on, off)), goal))
            if serial:
                name = f"{sessions} sessions / hf assisted one after the other"
                figures.append(Figure("concurrency", name, str(paired(on, serial)), "≥ 5"))
            on_curve.append((float(sessions), spread(on).value))
            off_curve.append((float(sessions), spread(off).value))
    base = off_curve[0][1]
    curves = {
        name: [(x, y / base) for x, y in curve] for name, curve in (("speculative", on_curve), ("plain", off_curve))
    }
    return Report("concurrency", figures, curves)


def _turns(
    system: Stack, peer: Peer, asks: Sequence[Ask], repeats: int, *, compare: bool
) -> tuple[list[float], list[float], list[float]]:
    """Speeds without drafts, with them, and of the peer that takes one session after the other."""
    plain = [replace(ask, gamma=0) for ask in asks]
    system.together([replace(ask, tokens=min(ask.tokens, 16)) for ask in asks])
    off, on, serial = list[float](), list[float](), list[float]()
    for _ in range(repeats):
        off_tokens = _timed(lambda: system.together(plain), off)
        on_tokens = _timed(lambda: system.together(asks), on)
        if off_tokens != on_tokens:
            raise InternalError("greedy tokens differ with speculation on and off")
        if compare:
            _timed(lambda: [peer.generate(ask) for ask in asks], serial)
    return off, on, serial


def _timed(work: Callable[[], Sequence[Run]], speeds: list[float]) -> list[tuple[int, ...]]:
    started = time.perf_counter()
    runs = work()
    speeds.append(sum(len(run.tokens) for run in runs) / (time.perf_counter() - started))
    return [run.tokens for run in runs]
