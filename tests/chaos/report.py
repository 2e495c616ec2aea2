"""What a chaos run came to: for people a table, for programs JSON."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.checker import Findings
from tests.chaos.faults import Kind
from tests.chaos.stream import Stream
from tests.chaos.supervisor import Done


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    commit_p50: float
    commit_p99: float
    lease: float


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    seed: int
    checked: tuple[tuple[Stream, Findings], ...]
    done: tuple[Done, ...]
    skipped: int
    """Faults left out because a replica of the victim was not whole yet."""
    timing: Timing

    @property
    def findings(self) -> Findings:
        """All streams together."""
        return sum((found for _, found in self.checked), Findings())

    @property
    def tokens(self) -> int:
        """Tokens that clients got."""
        return sum(len(stream.tokens) for stream, _ in self.checked)

    @property
    def bad(self) -> list[tuple[Stream, Findings]]:
        """Streams with findings."""
        return [(stream, found) for stream, found in self.checked if found]

    def recoveries(self) -> dict[str, list[float]]:
        """By fault: seconds until the last of the streams that ran then had something new, each time it was done."""
        found: dict[str, list[float]] = defaultdict(list)
        for done in self.done:
            waits = [wait for stream, _ in self.checked if (wait := _wait(stream, done.time)) is not None]
            if waits:
                found[done.fault.name].append(max(waits))
        return dict(found)

    def as_json(self) -> dict[str, Any]:
        """Everything but the tokens."""
        kinds = Counter(done.fault.kind for done in self.done)
        return {
            "seed": self.seed,
            **{kind.value: kinds[kind] for kind in Kind},
            "skipped": self.skipped,
            "streams": len(self.checked),
            "interruptions": Counter(why for stream, _ in self.checked for why in stream.interruptions),
            "tokens": self.tokens,
            **asdict(self.findings),
            **asdict(self.timing),
            "recovery": {
                name: {"times": len(waits), "p50": quantile(waits, 0.5), "p99": quantile(waits, 0.99)}
                for name, waits in sorted(self.recoveries().items())
            },
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
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
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _wait(stream: Stream, moment: float) -> float | None:
    """Seconds from a moment to the stream's next event; None for a stream that did not run then."""
    if not stream.began <= moment or not stream.arrivals or stream.arrivals[-1] < moment:
        return None
    return next(arrival for arrival in stream.arrivals if arrival >= moment) - moment
