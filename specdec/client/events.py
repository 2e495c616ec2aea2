"""A generation as a client sees it: the request, the events that the gateway streams, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.planning.gamma_policy import GammaPolicy
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import FinishReason
from specdec.wire.report import ReportedToken, RoundReport

Token = ReportedToken
"""One token of the output."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One generation to ask for; None leaves a choice to the server."""

    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    gamma: int | GammaPolicy | None = None
    mode: Mode | None = None
    lenience: float | None = None
    drafter: str = ""
    """The name of what drafts; empty for the server's choice."""
    tree: TreeOptions | None = None
    """How trees are drafted; None asks for chains."""
    stop: tuple[str, ...] = ()
    """Strings that end the output."""
    user: str = ""
    """On whose behalf; what is one user's is not there for another."""
    cache_salt: str = ""
    """What is computed of a common prefix is shared by requests of the same salt alone; empty for no salt."""
    session: str = ""
    """The session to go on in; empty for a generation of its own."""
    chat: bool = False
    """Whether the prompt is what the user says in a chat, and goes through the model's chat template."""
    detail: bool = False
    """Whether every round comes with a report."""


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """The first event: the generation has begun."""

    id: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round of a generation."""

    tokens: tuple[Token, ...]
    """The tokens that the round committed."""
    rejected: tuple[str, ...]
    """Texts of the draft tokens that were rejected."""
    report: RoundReport | None = None
    """Set when the request asks for it."""


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event: why the generation ended, and the server's counts."""

    reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    drafted: int
    accepted: int
    rounds: int
    """Rounds, those without a draft included."""
    fallbacks: Mapping[str, int]
    """For each reason why rounds had no draft, the number of such rounds."""
    lossy: bool = False
    """Whether lenience let the output differ in distribution from the target's."""


Event = StartedEvent | RoundEvent | FinishedEvent


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation, with the times as the client measured them."""

    started: StartedEvent
    tokens: tuple[Token, ...]
    """The whole output."""
    finished: FinishedEvent
    first_token: float
    """Seconds from the request to the first token."""
    seconds: float
    """Seconds from the request to the end."""
    reports: tuple[RoundReport, ...] = ()
    """Those of all rounds, when the request asks for them."""
    first_tokens: int = 1
    """Tokens of the first round, which come together."""

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, the wait for the first one included."""
        return self.finished.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Output tokens per second after the first ones; 0 where there are no others."""
        rest, seconds = self.finished.completion_tokens - self.first_tokens, self.seconds - self.first_token
        return rest / seconds if rest > 0 and seconds > 0 else 0.0

    @property
    def tokens_per_round(self) -> float:
        return self.finished.completion_tokens / self.finished.rounds if self.finished.rounds else 0.0

    @property
    def accepted_share(self) -> float | None:
        """Accepted draft tokens over all drafted ones; None without drafts.

        It is below the acceptance rate α: drafts after the first rejection are never judged.
        """
        return self.finished.accepted / self.finished.drafted if self.finished.drafted else None
