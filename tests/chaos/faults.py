"""The schedule of faults, a function of its seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done to a process, to the connections to it, or to a client."""

    KILL = "kill"
    """SIGKILL; the process is started again at once."""
    STOP = "stop"
    """SIGSTOP for longer than the lease, then SIGCONT."""
    CUT = "cut"
    """Every connection to the process is closed in place of its next answer."""
    FREEZE = "freeze"
    """Connections to the process stay open and carry nothing, for longer than the lease."""
    LEAVE = "leave"
    """A client closes its connection and connects again."""


PROCESSES = ("gateway", "verifier", "drafter", "redis")
_WEIGHTS = {Kind.KILL: 5, Kind.STOP: 2, Kind.CUT: 3, Kind.FREEZE: 1, Kind.LEAVE: 2}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at its time."""

    at: float
    """Seconds from the beginning of the run."""
    kind: Kind
    role: str
    index: int
    """Which process of the role, modulo the number of its processes."""

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"{self.kind} {self.role}"


def schedule(
    seed: int,
    seconds: float,
    every: float,
    kinds: Sequence[Kind] = tuple(Kind),
    roles: Sequence[str] = PROCESSES,
) -> Iterator[Fault]:
    """Faults of the given kinds and roles at random times, `every` seconds apart in the mean.

    The first ones are a SIGKILL of each role, so that even a short run has all of them.
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
