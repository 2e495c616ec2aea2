"""Tables of measured times, in addition to the ratios."""

from benchmarks.peers.turns import Runs
from benchmarks.reports.results import Table
from benchmarks.reports.statistics import percentile, spread


def latencies(runs: Runs) -> Table:
    """Return the table of each peer's speed, time to the first token, and times between rounds."""
    head = ("peer", "tokens/s", "first token, ms", "tokens a round", "between rounds, ms: p50", "p99")
    rows = []
    for name, made in runs.items():
        gaps = [gap * 1000 for run in made for gap in run.gaps] or [0.0]
        per_round = sum(len(run.tokens) for run in made) / sum(run.rounds for run in made)
        rows.append(
            (
                name,
                f"{spread([run.speed for run in made]).value:.0f}",
                f"{spread([run.first * 1000 for run in made]).value:.1f}",
                f"{per_round:.2f}",
                f"{percentile(gaps, 0.5):.1f}",
                f"{percentile(gaps, 0.99):.1f}",
            )
        )
    return Table(head, rows)
