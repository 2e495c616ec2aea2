"""One generation, as every peer reports it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation to make; it goes on past the model's end."""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    gamma: int | None = None
    """Draft length; 0 is plain decoding, None the peer's own choice."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it; seconds as the caller saw them."""

    tokens: tuple[int, ...]
    seconds: float
    first: float = 0.0
    """Seconds to the first token."""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    gaps: tuple[float, ...] = ()
    """Seconds between one round and the next."""

    @property
    def speed(self) -> float:
        """Tokens a second, the prompt's time included."""
        return len(self.tokens) / self.seconds


class Peer(Protocol):
    """Something that generates."""

    def generate(self, ask: Ask) -> Run:
        """Generate, alone."""
