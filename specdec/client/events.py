"""Client-side values of a generation: the request, the streamed events and the result."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.planning.gamma_policy import GammaPolicy
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import FinishReason
from specdec.wire.report import ReportedToken, RoundReport

Token = ReportedToken
"""One output token."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """Request for one generation. None leaves a choice to the server."""

    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    gamma: int | GammaPolicy | None = None
    mode: Mode | None = None
    lenience: float | None = None
    drafter: str = ""
    """Name of the drafter or source; empty for the server's choice."""
    tree: TreeOptions | None = None
    """Shape of draft trees; None requests chains."""
    stop: tuple[str, ...] = ()
    """Strings that end the output."""
    user: str = ""
    """User that the request is made for. Users cannot access each other's data."""
    cache_salt: str = ""
    """Cache salt: only requests with the same salt share computed prefixes; empty for no salt."""
    session: str = ""
    """Session to continue; empty for a standalone generation."""
    chat: bool = False
    """Whether the prompt is a user message that goes through the model's chat template."""
    detail: bool = False
    """Whether each round includes a report."""


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """First event: the generation has begun."""

    id: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round of a generation."""

    tokens: tuple[Token, ...]
    """Tokens that the round committed."""
    rejected: tuple[str, ...]
    """Texts of the rejected draft tokens."""
    report: RoundReport | None = None
    """Report of the round, if the request asks for it."""


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Last event: the finish reason and the server's counts."""

    reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    drafted: int
    accepted: int
    rounds: int
    """Number of rounds, including those without a draft."""
    fallbacks: Mapping[str, int]
    """Number of rounds without a draft, by reason."""
    lossy: bool = False
    """Whether lenience allowed the output distribution to differ from the target's."""


Event = StartedEvent | RoundEvent | FinishedEvent


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation, with the times measured by the client."""

    started: StartedEvent
    tokens: tuple[Token, ...]
    """Tokens of the whole output."""
    finished: FinishedEvent
    first_token: float
    """Time from the request to the first token, in seconds."""
    seconds: float
    """Time from the request to the end, in seconds."""
    reports: tuple[RoundReport, ...] = ()
    """Reports of all rounds, if the request asks for them."""
    first_tokens: int = 1
    """Number of tokens in the first round, which arrive together."""

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, including the time to the first token."""
        return self.finished.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Output tokens per second after the first round; 0 if there are no further tokens."""
        rest, seconds = self.finished.completion_tokens - self.first_tokens, self.seconds - self.first_token
        return rest / seconds if rest > 0 and seconds > 0 else 0.0

    @property
    def tokens_per_round(self) -> float:
        return self.finished.completion_tokens / self.finished.rounds if self.finished.rounds else 0.0

    @property
    def accepted_share(self) -> float | None:
        """Accepted draft tokens divided by all draft tokens; None without drafts.

        It is below the acceptance rate α: drafts after the first rejection are never judged.
        """
        return self.finished.accepted / self.finished.drafted if self.finished.drafted else None
