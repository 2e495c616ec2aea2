"""The whole system, one session: against the in-process engine, against `generate()`, and what a round costs on top."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from benchmarks.peers import Fixed, Process, interleave
from benchmarks.results import Figure, Report
from benchmarks.run import Run
from benchmarks.sections.engine import HF, HF_DEFAULT, HF_FIVE, PLAIN, hugging_face, ratio, spec
from benchmarks.sections.scale import Scale
from benchmarks.stack import running
from benchmarks.statistics import percentile, spread

STACK_PLAIN, STACK = "stack plain", "stack speculative"


def measure(scale: Scale) -> Report:
    """Ratios at batch 1, greedy; γ is the verifier's own choice."""
    with ExitStack() as processes:
        peers = hugging_face(processes, scale)
        peers[PLAIN] = Fixed(processes.enter_context(Process(spec(scale, "engine"))), 0)
        system = processes.enter_context(running(scale.pair))
        peers[STACK_PLAIN], peers[STACK] = Fixed(system, 0), Fixed(system, None)
        runs = interleave(peers, scale.pair.asks(scale.asks, scale.prompt, scale.tokens), scale.repeats)
        memory = system.resident_bytes()
    figures = [
        *_ratios(runs),
        Figure("stack", "distribution tax, ms a plain round", str(_tax(runs[STACK_PLAIN], runs[PLAIN])), "≤ 1.5"),
        *_times(runs[STACK]),
        *(Figure("stack", f"resident MiB, {role}", f"{size / 2**20:.0f}") for role, size in memory.items()),
    ]
    return Report("stack", figures, {})


def _ratios(runs: Mapping[str, list[Run]]) -> list[Figure]:
    wanted = [
        (STACK_PLAIN, HF, "≥ 1.0"),
        (STACK, HF_DEFAULT, "≥ 1.0, aim 1.3"),
        (STACK, HF_FIVE, "≥ 1.0, aim 1.3"),
        (STACK, STACK_PLAIN, "≥ 2.0"),
    ]
    return [Figure("stack", f"{one} / {other}", str(ratio(runs, one, other)), goal) for one, other, goal in wanted]


def _tax(system: Sequence[Run], local: Sequence[Run]) -> object:
    """Milliseconds of a round through the stack over those of the same round in process."""
    pairs = zip(system, local, strict=True)
    return spread([1000 * (ours.seconds / ours.rounds - alone.seconds / alone.rounds) for ours, alone in pairs])


def _times(runs: Sequence[Run]) -> list[Figure]:
    gaps = [gap * 1000 for run in runs for gap in run.gaps] or [0.0]
    first = str(spread([run.first * 1000 for run in runs]))
    return [
        Figure("stack", "ms to the first token, speculative", first),
        Figure("stack", "ms between rounds, p50", f"{percentile(gaps, 0.5):.1f}"),
        Figure("stack", "ms between rounds, p99", f"{percentile(gaps, 0.99):.1f}"),
        Figure("stack", "tokens a round", f"{sum(len(r.tokens) for r in runs) / sum(r.rounds for r in runs):.2f}"),
    ]
