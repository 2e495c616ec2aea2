"""Results of each system for one number of streams, with whole or streamed answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.host_path.load import Loaded
from benchmarks.peers.cells import BASE
from benchmarks.reports.statistics import Ratio, paired, percentile, spread

SPEED_HEAD = (
    "streams", "answers", "system", "tokens/s", f"speed / {BASE}", "first token, ms: p50", "p95", "refused",
    "tokens a round",
)  # fmt: skip
ROLES = ("verifier", "gateway", "store", "drafter", "API server", "engine", "others")
CPU_HEAD = ("streams", "answers", "system", "CPU µs a token", *ROLES, "client")
_STORES = ("redis", "redis-kv")
_NONE = "–"


@dataclass(frozen=True, slots=True)
class Turn:
    """One slice of one system."""

    speed: float
    """Tokens per second."""
    cpu: Mapping[str, float]
    """Microseconds of processor time per token, by role."""
    client: float
    """Microseconds of the client's processor time per token."""
    first: tuple[float, float] | None
    """Seconds to the first token, p50 and p95, or None for whole answers."""
    refused: int
    asked: int
    """Number of requests."""
    right: bool
    """Whether the first request's answer is the known one."""
    round_tokens: float | None
    """Tokens per round of the first request's answer, if the server reports it."""

    @property
    def cost(self) -> float:
        """Microseconds of processor time per token, of all processes of the system."""
        return sum(self.cpu.values())


def turn_of(loaded: Loaded, cpu: Mapping[str, float], asked: int, expected: str) -> Turn:
    """Return the figures of a slice.

    Args:
        loaded: results of the load.
        cpu: seconds of processor time by role.
        asked: number of requests.
        expected: text of the first answer.
    """
    tokens, seconds = max(1, loaded.tokens), {role: 0.0 for role in ROLES if role in cpu}
    for role, spent in cpu.items():
        named = "store" if role in _STORES else role
        seconds[named] = seconds.get(named, 0.0) + spent
    return Turn(
        speed=loaded.speed,
        cpu={role: 1e6 * spent / tokens for role, spent in seconds.items()},
        client=1e6 * loaded.cpu / tokens,
        first=(percentile(loaded.firsts, 0.5), percentile(loaded.firsts, 0.95)) if loaded.firsts else None,
        refused=loaded.refused,
        asked=asked,
        right=loaded.text == expected,
        round_tokens=loaded.round_tokens,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Turns of one system in a cell, or the reason for having none."""

    turns: Sequence[Turn] = ()
    reason: str = ""

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of each turn."""
        return [turn.speed for turn in self.turns]

    @property
    def cost(self) -> Ratio:
        """Microseconds of processor time per token."""
        return spread([turn.cost for turn in self.turns])

    def first(self, at: int) -> float | None:
        """Return the median over turns of the seconds to the first token: p50 at 0, p95 at 1.

        None for whole answers.
        """
        found = [turn.first[at] for turn in self.turns if turn.first is not None]
        return median(found) if found else None


@dataclass(frozen=True, slots=True)
class Cell:
    """All systems at one number of streams, in turns."""

    streams: int
    streamed: bool
    outcomes: Mapping[str, Outcome]

    @property
    def answers(self) -> str:
        """Name of the way in which answers are sent."""
        return "streamed" if self.streamed else "whole"

    def turns(self, name: str) -> Sequence[Turn]:
        """Return the turns of a system, or none if it failed or was not measured."""
        return self.outcomes.get(name, Outcome()).turns

    def ratio(self, one: str, other: str = BASE) -> Ratio | None:
        """Return the speed of `one` divided by that of `other` in the same turn, or None if one has no figures."""
        mine, theirs = self.turns(one), self.turns(other)
        return paired([turn.speed for turn in mine], [turn.speed for turn in theirs]) if mine and theirs else None

    def speed_rows(self) -> Iterator[list[str]]:
        """Yield a row of SPEED_HEAD for each system."""
        for name, outcome in self.outcomes.items():
            head = [str(self.streams), self.answers, name]
            if not outcome.turns:
                yield [*head, outcome.reason, *[_NONE] * (len(SPEED_HEAD) - len(head) - 1)]
                continue
            times = ["" if (first := outcome.first(at)) is None else f"{1000 * first:.0f}" for at in (0, 1)]
            refused = f"{sum(turn.refused for turn in outcome.turns)} of {sum(turn.asked for turn in outcome.turns)}"
            rounds = [turn.round_tokens for turn in outcome.turns if turn.round_tokens is not None]
            yield [
                *head, _whole(spread(outcome.speeds)), str(self.ratio(name) or _NONE), *times, refused,
                f"{median(rounds):.2f}" if rounds else "",
            ]  # fmt: skip

    def cpu_rows(self) -> Iterator[list[str]]:
        """Yield a row of CPU_HEAD for each system that has figures."""
        for name, outcome in self.outcomes.items():
            if outcome.turns:
                shares = [_share([turn.cpu.get(role) for turn in outcome.turns]) for role in ROLES]
                client = _share([turn.client for turn in outcome.turns])
                yield [str(self.streams), self.answers, name, _whole(outcome.cost), *shares, client]


def _share(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{median(found):.1f}" if found else ""


def _whole(ratio: Ratio) -> str:
    """Return a median with the middle half, without decimals."""
    return f"{ratio.value:.0f} ({ratio.low:.0f}..{ratio.high:.0f})"
