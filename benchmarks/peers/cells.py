"""Results of each peer at one model, temperature and number of streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.reports.statistics import Ratio, paired, percentile, spread
from benchmarks.run import Slice

BASE = "vLLM plain"
"""The peer to which all speeds are compared."""
HEAD = (
    "model", "temperature", "streams", "peer", f"speed / {BASE}", "tokens/s", "first token, ms: p50",
    "between tokens, ms: p99", "memory, MiB",
)  # fmt: skip
_REASON = 120
"""Largest number of characters of a reason."""


def reason_of(failure: str) -> str:
    """Return a failure as one short line of a table. Of several lines, take the first that names an error."""
    lines = failure.strip().splitlines() or [""]
    named = next((each for each in lines if "error:" in each.lower()), lines[0])
    line = " ".join(named.split()).replace("|", "/")
    return line if len(line) <= _REASON else f"{line[: _REASON - 1]}…"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one peer in a cell, or the reason for having none."""

    speeds: Sequence[float] = ()
    """Tokens a second of all streams together, for each turn."""
    first: float = 0.0
    """Median seconds to the first token."""
    gap: float = 0.0
    """99th percentile of the seconds between tokens. The gap between tokens that arrive together is 0."""
    memory: int = 0
    """Bytes of memory."""
    reason: str = ""

    @classmethod
    def of(cls, slices: Sequence[Slice], memory: int) -> "Outcome":
        """Return the outcome of the slices of a cell."""
        runs = [run for each in slices for run in each.runs]
        gaps = [gap for run in runs for gap in run.gaps] or [0.0]
        return cls(
            [each.speed for each in slices],
            percentile([run.first for run in runs], 0.5),
            percentile(gaps, 0.99),
            memory,
        )

    @classmethod
    def failed(cls, reason: str) -> "Outcome":
        """Return an outcome without figures, for that reason."""
        return cls(reason=reason_of(reason))


@dataclass(frozen=True, slots=True)
class Cell:
    """The peers at one model, temperature and number of streams, in turns."""

    model: str
    temperature: float
    streams: int
    outcomes: Mapping[str, Outcome]

    def ratio(self, one: str, other: str = BASE) -> Ratio | None:
        """Return the speed of `one` divided by that of `other` in the same turn, or None if one has no figures."""
        mine, theirs = (self.outcomes.get(name, Outcome()).speeds for name in (one, other))
        return paired(mine, theirs) if mine and theirs else None

    def rows(self) -> list[list[str]]:
        """Return a table's row for each peer."""
        head = [self.model, f"{self.temperature:g}", str(self.streams)]
        return [[*head, name, *self._figures(name, each)] for name, each in self.outcomes.items()]

    def _figures(self, name: str, outcome: Outcome) -> list[str]:
        if outcome.reason:
            return [outcome.reason, *["–"] * 4]
        times = [f"{1000 * outcome.first:.0f}", f"{1000 * outcome.gap:.1f}"]
        speeds = [str(self.ratio(name) or "–"), f"{spread(outcome.speeds).value:.1f}"]
        return [*speeds, *times, f"{outcome.memory / 2**20:.0f}"]
