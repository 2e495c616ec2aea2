"""Which faults happen when: a seeded list, the same for the same seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    """SIGKILL; started again at once."""
    STOP = "stop"
    """SIGSTOP for longer than the lease, then SIGCONT."""
    CUT = "cut"
    """Every connection to it breaks in place of its next answer."""
    FREEZE = "freeze"
    """Connections to it stay open and carry nothing, for longer than the lease."""
    LEAVE = "leave"
    """A client goes and comes back."""


PROCESSES = ("gateway", "verifier", "drafter", "redis")
_WEIGHTS = {Kind.KILL: 5, Kind.STOP: 2, Kind.CUT: 3, Kind.FREEZE: 1, Kind.LEAVE: 2}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    at: float
    """Seconds from the beginning."""
    kind: Kind
    role: str
    index: int
    """Which of the role; taken modulo how many there are."""

    @property
    def name(self) -> str:
        """As reported."""
        return f"{self.kind} {self.role}"


def schedule(
    seed: int,
    seconds: float,
    every: float,
    kinds: Sequence[Kind] = tuple(Kind),
    roles: Sequence[str] = PROCESSES,
) -> Iterator[Fault]:
    """Faults at random times, `every` seconds apart in the mean, of the kinds and roles given.

    The first ones are one SIGKILL of each role, so that even a short run has seen them all.
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
