"""The whole system with one session: against the in-process engine and `generate()`, and its overhead per round."""

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.peers.turns import Fixed, Runs, agreement, interleave, ratio
from benchmarks.reports.results import Figure, Goal, Report, Table, figure
from benchmarks.reports.statistics import Ratio, spread
from benchmarks.run import Ask, Run
from benchmarks.sections.engine import PLAIN, SPECULATIVE
from benchmarks.sections.lab import HF, HF_DEFAULT, HF_FIVE, Lab, named
from benchmarks.sections.times import latencies
from benchmarks.systems.stack import Stack

STACK_PLAIN, STACK, STACK_FIXED = "stack plain", "stack speculative", "stack γ={}"
GAMMA = 5
"""Fixed draft length, equal to that of the peer with constant tokens."""
_PHASES = {"draft": "waiting for drafts", "queue": "waiting for the target", "verify": "pass and verdict"}
_SUM = "specdec_spec_phase_seconds_sum/{}"
_TEXT = """\
Batch 1 through gateway, verifier, drafter and Redis. "Speculative" leaves γ to the verifier. The tax is the time of
a round through the stack less that of the same round in process, prompts aside; where it is negative, drafting on
the other core saves more than the way there costs."""


def measure(lab: Lab) -> Report:
    """Measure ratios, overhead, times and memory."""
    own, system = lab.engine(), lab.system()
    peers = {
        **lab.hugging_face(),
        **lab.hugging_face(threads=2),
        PLAIN: Fixed(own, 0),
        SPECULATIVE.format(GAMMA): Fixed(own, GAMMA),
        STACK_PLAIN: Fixed(system, 0),
        STACK_FIXED.format(GAMMA): Fixed(system, GAMMA),
        STACK: Fixed(system, None),
    }
    runs = interleave(peers, lab.asks(), lab.scale.repeats)
    figures = [
        *(each for threads in (1, 2) for each in _against(runs, threads)),
        figure(f"{STACK} / {STACK_PLAIN}", ratio(runs, STACK, STACK_PLAIN), Goal(2.0)),
        *_distribution(runs),
        agreement(runs),
    ]
    memory = Table(("process", "resident, MiB"), [(name, f"{size / 2**20:.0f}") for name, size in lab.resident_bytes()])
    profile = _phases(system, lab.asks(), {"plain": 0, f"γ={GAMMA}": GAMMA, "speculative": None})
    return Report("stack", _TEXT, figures, [latencies(runs), profile, memory])


def _against(runs: Runs, threads: int) -> list[Figure]:
    """Compare each of ours with each of theirs, and judge by the better of two."""
    plain, default, five = (named(name, threads) for name in (HF, HF_DEFAULT, HF_FIVE))
    better = max((default, five), key=lambda name: median(run.speed for run in runs[name]))
    return [
        figure(f"{STACK_PLAIN} / {plain}", ratio(runs, STACK_PLAIN, plain), Goal(1.0)),
        figure(f"{STACK} / the better, {better}", ratio(runs, STACK, better), Goal(1.0, aim=1.3)),
        *(figure(f"{STACK} / {name}", ratio(runs, STACK, name)) for name in (default, five) if name != better),
    ]


def _distribution(runs: Runs) -> list[Figure]:
    fixed, same = STACK_FIXED.format(GAMMA), SPECULATIVE.format(GAMMA)
    return [
        figure(f"{STACK_PLAIN} / {PLAIN}", ratio(runs, STACK_PLAIN, PLAIN)),
        figure(f"{fixed} / {same}", ratio(runs, fixed, same)),
        figure("tax, ms a plain round", _tax(runs[STACK_PLAIN], runs[PLAIN]), Goal(1.5, at_most=True)),
        figure(f"tax, ms a round of γ={GAMMA}", _tax(runs[fixed], runs[same])),
    ]


def _tax(system: Sequence[Run], local: Sequence[Run]) -> Ratio:
    """Return the milliseconds of a round through the stack minus those of the same round in process."""
    pairs = zip(system, local, strict=True)
    return spread([1000 * (ours.round_seconds - alone.round_seconds) for ours, alone in pairs])


def _phases(system: Stack, asks: Sequence[Ask], gammas: Mapping[str, int | None]) -> Table:
    """Return the milliseconds a round, prompts included, one session at a time, for each named draft length."""
    rows = [(name, *_phase_row(system, asks, gamma)) for name, gamma in gammas.items()]
    head = ("ms a round", "all", *_PHASES.values(), "gateway, Redis, gRPC, client")
    return Table(head, rows)


def _phase_row(system: Stack, asks: Sequence[Ask], gamma: int | None) -> list[str]:
    before = system.metrics("verifier")
    runs = [Fixed(system, gamma).generate(ask) for ask in asks]
    after = system.metrics("verifier")
    rounds = sum(run.rounds for run in runs)
    spent = [after[_SUM.format(phase)] - before.get(_SUM.format(phase), 0.0) for phase in _PHASES]
    total = sum(run.seconds for run in runs)
    return [f"{1000 * seconds / rounds:.2f}" for seconds in (total, *spent, total - sum(spent))]
