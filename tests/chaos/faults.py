"""The schedule of faults, a function of its seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of faults, in a process, in its connections, or in a client."""

    KILL = "kill"
    """SIGKILL. The process is restarted at once."""
    STOP = "stop"
    """SIGSTOP for longer than the lease, then SIGCONT."""
    CUT = "cut"
    """Close every connection to the process instead of its next answer."""
    FREEZE = "freeze"
    """Connections to the process stay open and carry no data, for longer than the lease."""
    LEAVE = "leave"
    """A client closes its connection and connects again."""


PROCESSES = ("gateway", "verifier", "drafter", "redis")
_WEIGHTS = {Kind.KILL: 5, Kind.STOP: 2, Kind.CUT: 3, Kind.FREEZE: 1, Kind.LEAVE: 2}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its time."""

    at: float
    """Seconds since the beginning of the run."""
    kind: Kind
    role: str
    index: int
    """Number of the process in its role, modulo the number of processes."""

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.kind} {self.role}"


@dataclass(frozen=True, slots=True)
class InTurn:
    """Kills of the processes of a role in turn. Each is ready again before the next one is killed."""

    tokens: int
    """Tokens that clients receive at least, until the end of the run."""
    spacing: int = 2000
    """Tokens that clients receive before each kill and after the last one, while every process is ready.

    Meanwhile answers end, and others begin at the process that was restarted.
    """
    kills: int = 4
    """Least number of kills."""
    role: str = "verifier"


def schedule(
    seed: int,
    seconds: float,
    every: float,
    kinds: Sequence[Kind] = tuple(Kind),
    roles: Sequence[str] = PROCESSES,
) -> Iterator[Fault]:
    """Return faults of the given kinds and roles at random times, on average `every` seconds apart.

    The first faults are a SIGKILL of each role, so that even a short run includes all of them.
    """
    rng = random.Random(seed)
    first = [(Kind.KILL, role) for role in roles] if Kind.KILL in kinds else []
    rng.shuffle(first)
    at = 0.0
    while (at := at + every * rng.uniform(0.5, 1.5)) < seconds:
        kind, role = first.pop() if first else _draw(rng, kinds, roles)
        yield Fault(at, kind, role, rng.randrange(2))


def _draw(rng: random.Random, kinds: Sequence[Kind], roles: Sequence[str]) -> tuple[Kind, str]:
    kind = rng.choices(kinds, [_WEIGHTS[each] for each in kinds])[0]
    return kind, "client" if kind is Kind.LEAVE else rng.choice(roles)
