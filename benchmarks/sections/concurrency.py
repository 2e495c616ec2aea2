"""Concurrent sessions through the whole system: speculation on and off, and against `generate()` in sequence."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.reports.results import Chart, Figure, Goal, Report, Table, figure, same_tokens
from benchmarks.reports.statistics import paired, percentile, spread
from benchmarks.run import Ask, Peer, Run
from benchmarks.sections.lab import HF_DEFAULT, Lab
from benchmarks.systems.stack import Stack

_TEXT = """\
Sessions that begin at the same moment, each with a prompt of its own; speeds are of all of them together. "On"
leaves γ to the verifier. `generate(assistant_model=…)` takes one sequence, so it answers the same requests one after
the other."""
_MORE = 3
"""Additional turns, because a ratio close to 1 must be distinguished from 1."""
_SERIAL = 16
"""Number of sessions run by `generate()` in sequence."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to answer all requests: tokens a second of each turn, and the runs."""

    speeds: list[float] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def measure(lab: Lab) -> Report:
    """Measure the tokens a second of all sessions together."""
    system = lab.system()
    figures, rows, same, total = list[Figure](), list[list[str]](), 0, 0
    curves: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    for sessions in lab.scale.sessions:
        asks = lab.scale.pair.asks(sessions, lab.scale.prompt, lab.scale.tokens)
        sides = _turns(system, asks, lab.scale.repeats + _MORE)
        off, on = sides["off"], sides["on"]
        goal = Goal(0.97) if sessions == max(lab.scale.sessions) else None
        figures.append(figure(f"{sessions} sessions, on / off", paired(on.speeds, off.speeds), goal))
        if sessions == min(_SERIAL, max(lab.scale.sessions)):
            figures += _against(lab, system, asks)
        same += sum(one.tokens == other.tokens for one, other in zip(on.runs, off.runs, strict=True))
        total += len(on.runs)
        for name, side in sides.items():
            rows.append([str(sessions), name, *_row(side)])
            curves[name].append((float(sessions), spread(side.speeds).value))
    figures.append(same_tokens(same, total))
    head = ("sessions", "speculation", "tokens/s", "first token, ms: p50", "p99", "between rounds, ms: p50", "p99")
    chart = Chart("sessions", "sessions", "tokens/s of all together", curves)
    return Report("concurrency", _TEXT, figures, [Table(head, rows)], [chart])


def _turns(system: Stack, asks: Sequence[Ask], repeats: int) -> Mapping[str, Side]:
    """Run without drafts and with them, in turn."""
    wanted = {"off": [replace(ask, gamma=0) for ask in asks], "on": list(asks)}
    sides = {name: Side() for name in wanted}
    system.together([replace(ask, tokens=min(ask.tokens, 16)) for ask in asks])
    for turn in range(repeats):
        for name in sorted(wanted, reverse=bool(turn % 2)):
            sides[name].runs.extend(_timed(lambda name=name: system.together(wanted[name]), sides[name].speeds))  # type: ignore[misc]
    return sides


def _against(lab: Lab, system: Stack, asks: Sequence[Ask]) -> list[Figure]:
    """Compare the stack, which answers requests concurrently, with each peer, which answers one after another."""
    serial = [*lab.hugging_face().items(), *lab.hugging_face(threads=2).items()]
    peers = {name: peer for name, peer in serial if name.startswith(HF_DEFAULT)}
    ours, theirs = list[float](), {name: list[float]() for name in peers}
    for _ in range(max(1, lab.scale.repeats - 1)):
        _timed(lambda: system.together(asks), ours)
        for name, peer in peers.items():
            _timed(lambda peer=peer: _sequence(peer, asks), theirs[name])  # type: ignore[misc]
    return [
        figure(f"{len(asks)} sessions / {name}, one after the other", paired(ours, speeds), Goal(5.0))
        for name, speeds in theirs.items()
    ]


def _sequence(peer: Peer, asks: Sequence[Ask]) -> list[Run]:
    return [peer.generate(ask) for ask in asks]


def _timed(work: Callable[[], Sequence[Run]], speeds: list[float]) -> Sequence[Run]:
    started = time.perf_counter()
    runs = work()
    speeds.append(sum(len(run.tokens) for run in runs) / (time.perf_counter() - started))
    return runs


def _row(side: Side) -> list[str]:
    firsts = [1000 * run.first for run in side.runs]
    gaps = [1000 * gap for run in side.runs for gap in run.gaps] or [0.0]
    times = [percentile(samples, share) for samples in (firsts, gaps) for share in (0.5, 0.99)]
    return [f"{spread(side.speeds).value:.0f}", *(f"{each:.1f}" for each in times)]
