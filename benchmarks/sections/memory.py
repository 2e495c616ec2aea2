"""A verifier whose KV cannot hold all sessions at once keeps within its budget and loses no session."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.reports.results import Figure, Goal, Report, Table, figure, same_tokens
from benchmarks.reports.statistics import spread
from benchmarks.run import Ask, Run
from benchmarks.sections.lab import Lab
from benchmarks.systems.stack import Stack, running

_KV = "specdec_kv_cache_bytes/{}"
_MIB = 2**20
_TEXT = """\
The most sessions of this page at once, on a verifier whose budget for keys and values is too small for them: it is
to be kept at every moment, and every session is to end with the tokens it has where there is room. Counted by the
verifier and read many times a second."""


def measure(lab: Lab) -> Report:
    """Measure the peak of KV, and the memory of the processes."""
    scale = lab.scale
    asks = scale.pair.asks(max(scale.sessions), scale.prompt, scale.tokens)
    roomy, needed = _watched(lab.system(), asks)
    with running(scale.pair, *lab.arguments, SPECDEC_VERIFIER_KV_BYTES=str(scale.kv_bytes)) as small:
        before = small.resident_bytes()
        tight, fullest = _watched(small, asks)
        counted, after = small.metrics("verifier"), small.resident_bytes()
    identical = sum(one.tokens == other.tokens for one, other in zip(roomy, tight, strict=True))
    held = fullest.together / counted[_KV.format("budget")]
    figures = [
        figure("KV at the fullest moment / budget", spread([held]), Goal(1.0, at_most=True)),
        Figure("budget, MiB", f"{scale.kv_bytes / _MIB:.0f}"),
        Figure("KV of the same sessions where there is room, MiB", f"{needed.live / _MIB:.1f}"),
        Figure("times a session gave up its KV to one before it", f"{counted['specdec_preemptions_total']:.0f}"),
        same_tokens(identical, len(tight)),
    ]
    rows = [(role, *(f"{size[role] / _MIB:.0f}" for size in (before, after))) for role in before]
    return Report("memory", _TEXT, figures, [Table(("process", "resident before, MiB", "after"), rows)])


@dataclass(frozen=True, slots=True)
class Fullest:
    """The largest observed numbers of bytes of KV."""

    live: float = 0.0
    """Bytes of running sessions."""
    together: float = 0.0
    """Bytes of running and ended sessions together."""


def _watched(system: Stack, asks: Sequence[Ask]) -> tuple[list[Run], Fullest]:
    """Answer all requests at once, and read the verifier's KV metrics meanwhile."""
    fullest = Fullest()
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(system.together, asks)
        while not work.done():
            counted = system.metrics("verifier")
            live, cached = (counted.get(_KV.format(state), 0.0) for state in ("live", "cached"))
            fullest = Fullest(max(fullest.live, live), max(fullest.together, live + cached))
            time.sleep(0.02)
    return work.result(), fullest
