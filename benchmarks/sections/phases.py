"""Where the time of a round goes, from the verifier's own account and the client's clock."""

from collections.abc import Mapping, Sequence

from benchmarks.peers import Fixed
from benchmarks.results import Table
from benchmarks.run import Ask
from benchmarks.stack import Stack

_PHASES = {"draft": "waiting for drafts", "queue": "waiting for the target", "verify": "pass and verdict"}
_SUM = "specdec_spec_phase_seconds_sum/{}"


def phases(system: Stack, asks: Sequence[Ask], gammas: Mapping[str, int | None]) -> Table:
    """Milliseconds a round, prompts included, one session at a time, for each named draft length."""
    rows = [(name, *_row(system, asks, gamma)) for name, gamma in gammas.items()]
    head = ("ms a round", "all", *_PHASES.values(), "gateway, Redis, gRPC, client")
    return Table(head, rows)


def _row(system: Stack, asks: Sequence[Ask], gamma: int | None) -> list[str]:
    before = system.metrics("verifier")
    runs = [Fixed(system, gamma).generate(ask) for ask in asks]
    after = system.metrics("verifier")
    rounds = sum(run.rounds for run in runs)
    spent = [after[_SUM.format(phase)] - before.get(_SUM.format(phase), 0.0) for phase in _PHASES]
    total = sum(run.seconds for run in runs)
    return [f"{1000 * seconds / rounds:.2f}" for seconds in (total, *spent, total - sum(spent))]
