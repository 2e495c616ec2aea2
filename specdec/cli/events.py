"""What the gateway streams, as values: Started, then Rounds, then Finished; and what all of it amounts to."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.rules.params import FinishReason, Mode, Origin


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to ask for; None leaves the choice to the server."""

    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    gamma: int | None = None
    mode: Mode | None = None
    lenience: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the output."""

    id: int
    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Started:
    """First."""

    id: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """Committed tokens, and the drafts that were not kept."""

    tokens: tuple[Token, ...]
    rejected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """Last: why it ended and the server's own counts."""

    reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    drafted: int
    accepted: int
    rounds: int
    """Target passes, those without a draft included."""
    fallbacks: Mapping[str, int]
    """Why rounds had no draft: reason to number of rounds."""
    lossy: bool = False
    """Whether lenience let the output differ in distribution from the target's."""


Event = Started | Round | Finished


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished generation with the times this end of the wire saw."""

    started: Started
    tokens: tuple[Token, ...]
    finished: Finished
    first_token: float
    """Seconds from the request to the first token."""
    seconds: float
    """Seconds from the request to the end."""

    @property
    def text(self) -> str:
        """The whole output."""
        return "".join(token.text for token in self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole time, the wait for the first one included."""
        return self.finished.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per target pass."""
        return self.finished.completion_tokens / self.finished.rounds if self.finished.rounds else 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted; None without drafts."""
        return self.finished.accepted / self.finished.drafted if self.finished.drafted else None
