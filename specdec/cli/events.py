"""A generation as the command line sees it: the request, and the result with its times."""

from dataclasses import dataclass

from protos.gateway.v1.gateway_pb2 import CommittedToken, Finished, Started
from specdec.rules.params import Mode


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One generation to ask for; None leaves a choice to the server."""

    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    gamma: int | None = None
    mode: Mode | None = None
    lenience: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation, with the times as the client measured them."""

    started: Started
    tokens: tuple[CommittedToken, ...]
    """The whole output."""
    finished: Finished
    first_token: float
    """Seconds from the request to the first token."""
    seconds: float
    """Seconds from the request to the end."""

    @property
    def text(self) -> str:
        """The text of the whole output."""
        return "".join(token.text for token in self.tokens)

    @property
    def rounds(self) -> int:
        """Rounds, those without a draft included."""
        return self.finished.speculation.num_spec_steps + self.finished.speculation.num_plain_steps

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, the wait for the first one included."""
        return self.finished.usage.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per round."""
        return self.finished.usage.completion_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of the draft tokens that were accepted; None without drafts."""
        summary = self.finished.speculation
        return summary.num_accepted_draft_tokens / summary.num_draft_tokens if summary.num_draft_tokens else None
