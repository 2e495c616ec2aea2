"""The result of a chaos run: a table for people, JSON for programs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.checker import Findings
from tests.chaos.faults import Kind
from tests.chaos.injector import InjectedFault
from tests.chaos.moves import Moves
from tests.chaos.stream import Stream


@dataclass(frozen=True, slots=True)
class Timing:
    """Quantiles of the commit latency, and the lease, all in seconds."""

    commit_p50: float
    commit_p99: float
    lease: float


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    seed: int
    checked: tuple[tuple[Stream, Findings], ...]
    injected: tuple[InjectedFault, ...]
    skipped: int
    """Number of faults left out because an earlier one of the same role was not repaired yet."""
    timing: Timing
    moves: Moves = field(default_factory=Moves)
    """Moves between verifiers; none are counted without a store of KV blocks."""

    @property
    def findings(self) -> Findings:
        """Return the findings of all streams together."""
        return sum((found for _, found in self.checked), Findings())

    @property
    def tokens(self) -> int:
        """Return the number of tokens that clients received."""
        return sum(len(stream.tokens) for stream, _ in self.checked)

    @property
    def bad(self) -> list[tuple[Stream, Findings]]:
        """Return the streams with findings."""
        return [(stream, found) for stream, found in self.checked if found]

    def recoveries(self) -> dict[str, list[float]]:
        """For each injection of each fault, by its name, the seconds until every running stream had a new event."""
        found: dict[str, list[float]] = defaultdict(list)
        for each in self.injected:
            waits = [wait for stream, _ in self.checked if (wait := _wait(stream, each.time)) is not None]
            if waits:
                found[each.fault.name].append(max(waits))
        return dict(found)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the tokens, as JSON."""
        kinds = Counter(each.fault.kind for each in self.injected)
        return {
            "seed": self.seed,
            **{kind.value: kinds[kind] for kind in Kind},
            "skipped": self.skipped,
            "streams": len(self.checked),
            "interruptions": Counter(why for stream, _ in self.checked for why in stream.interruptions),
            "tokens": self.tokens,
            **asdict(self.findings),
            **asdict(self.timing),
            **asdict(self.moves),
            "recovery": {
                name: {"times": len(waits), "p50": quantile(waits, 0.5), "p99": quantile(waits, 0.99)}
                for name, waits in sorted(self.recoveries().items())
            },
        }

    def lines(self) -> Iterator[str]:
        """Return the lines of the table."""
        shown = self.as_json()
        recovery, interruptions = shown.pop("recovery"), shown.pop("interruptions")
        for name, value in shown.items():
            yield f"{name:<16} {value:.4g}" if isinstance(value, float) else f"{name:<16} {value}"
        yield f"{'recovery, s':<16} {'times':>6} {'p50':>8} {'p99':>8}"
        for name, row in recovery.items():
            yield f"{name:<16} {row['times']:>6} {row['p50']:>8.2f} {row['p99']:>8.2f}"
        yield f"{'interruptions':<40} {'times':>6}"
        for why, times in interruptions.most_common():
            yield f"{why:<40} {times:>6}"
        for stream, found in self.bad:
            yield f"WRONG {stream.scenario} {found} {stream.shown} {stream.interruptions}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _wait(stream: Stream, moment: float) -> float | None:
    """Return the seconds from a moment to the stream's next event, or None if the stream did not run at that moment."""
    if not stream.began <= moment or not stream.arrivals or stream.arrivals[-1] < moment:
        return None
    return next(arrival for arrival in stream.arrivals if arrival >= moment) - moment
