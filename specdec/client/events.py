"""Client-side values of a generation: the request, the streamed events and the result."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.beams.options import BeamOptions, BeamReport
from specdec.client.requests import ChatOptions, CustomTool, FunctionTool, OutputForm, Prompt, ToolInvocation
from specdec.planning.gamma_policy import GammaPolicy
from specdec.rules.speculation import Mode, Origin, TreeOptions
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.report import RoundReport


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """Request for one generation, with the field names of the API. None leaves a choice to the server."""

    prompt: Prompt
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
    """Whether a text is a user message that goes through the model's chat template. Messages always do."""
    detail: bool = False
    """Whether each round includes a report."""
    model: str = ""
    """Name of the model; empty for the only one."""
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Bias of token ids, in [-100, 100]."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only ids that may be drawn; empty allows all."""
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    """Texts whose tokens never appear in the output one after the other."""
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    n: int | None = None
    """Number of choices, 1 to 16. The one at index i has the tokens of the seed i higher."""
    logprobs: int | None = None
    """Number of likely tokens that are reported with each output token; None reports no log probabilities."""
    prompt_logprobs: int | None = None
    """Like `logprobs`, for the tokens of the prompt."""
    prediction: str = ""
    """Text that much of the output is expected to repeat; it is drafted from."""
    structured_output: OutputForm | None = None
    tools: tuple[FunctionTool | CustomTool, ...] = ()
    tool_choice: str = ""
    """`auto`, `none` or `required`; empty for the server's default, `auto`."""
    forced_tool: str = ""
    """Name of the one tool that is called; in place of `tool_choice`."""
    parallel_tool_calls: bool | None = None
    chat_options: ChatOptions | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    """Number of the prompt's last tokens that are used; -1 for as many as there is room for."""
    expect_turn: int | None = None
    """Number of turns that the session must have had, or the request is refused."""
    priority: str = ""
    """`flex`, `default` or `priority`; empty for the default."""
    beam_search: BeamOptions | None = None
    """Search for the best beam, in place of sampling; None samples."""
    request_id: str = ""
    """Idempotency key: a repeated request joins the generation that it began; empty for a new one."""


@dataclass(frozen=True, slots=True)
class Token:
    """One output token."""

    id: int
    text: str
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """Log probabilities, if the request asks for them."""


@dataclass(frozen=True, slots=True)
class FunctionCallDelta:
    """Part of a call. The parts with one index are joined."""

    index: int
    arguments: str
    id: str = ""
    """Set in the first part, as is the name."""
    name: str = ""
    custom: bool = False
    """Whether `arguments` is the input of a custom tool."""


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """Next part of a message that is parsed for calls, if the request offers tools."""

    content: str = ""
    tool_calls: tuple[FunctionCallDelta, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """Message that was parsed for calls."""

    content: str = ""
    """Text around the calls."""
    tool_calls: tuple[ToolInvocation, ...] = ()
    reasoning: str = ""
    """Thinking before the answer."""


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """First event: the generation has begun."""

    id: str
    model: str
    seed: int
    prompt_token_ids: tuple[int, ...] = ()
    system_fingerprint: str = ""
    """Outputs of one seed agree under one fingerprint."""
    session: str = ""
    turn: int = 0
    """Number of turns of the session, this one included."""
    priority: str = ""


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round of a generation."""

    tokens: tuple[Token, ...]
    """Tokens that the round committed."""
    rejected: tuple[str, ...]
    """Texts of the rejected draft tokens."""
    report: RoundReport | None = None
    """Report of the round, if the request asks for it."""
    choice: int = 0
    """Index of the choice."""
    drafted: int = 0
    """Length of the draft."""
    accepted: int = 0
    """Number of accepted draft tokens."""
    message: AnswerDelta | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """In the first round of a choice: log probabilities of the prompt's tokens but the first, if requested."""


@dataclass(frozen=True, slots=True)
class DrafterCounts:
    """Statistics of the rounds of one drafter, with the field names of the API."""

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    alpha: float = 0.0
    c: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationTotals:
    """Statistics of speculation, with the field names of the API, which are vLLM's."""

    mode: Mode | None = None
    num_spec_steps: int = 0
    num_spec_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    draft_acceptance_rate: float = 0.0
    mean_acceptance_length: float = 0.0
    acceptance_histogram: tuple[int, ...] = ()
    num_plain_steps: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    lenience: float = 1.0
    lossy: bool = False
    drafters: Mapping[str, DrafterCounts] = field(default_factory=dict)
    predicted_speedup: float = 0.0
    measured_speedup: float = 0.0
    beam_search: BeamReport | None = None
    """Report of a beam search; None without one, or if the answer is read back from the session store."""


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Last event of a choice: the finish reason and the server's counts."""

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
    choice: int = 0
    """Index of the choice."""
    matched_stop: str = ""
    """Stop string that ended the output; empty if none did."""
    cached_tokens: int = 0
    """Number of prompt tokens found in the prefix cache."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    speculation: SpeculationTotals | None = None
    message: AnswerDelta | None = None
    """Rest of the message, if the request offers tools."""


Event = StartedEvent | RoundEvent | FinishedEvent


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """One choice of a finished generation."""

    tokens: tuple[Token, ...]
    finished: FinishedEvent
    message: AnswerMessage
    """Message parsed for calls; empty if the request offers no tools."""
    reports: tuple[RoundReport, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


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
    choices: tuple[ChoiceResult, ...] = ()
    """All choices by index. The fields above are those of the first one."""

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def message(self) -> AnswerMessage:
        """Message of the first choice, parsed for calls; empty if the request offers no tools."""
        return self.choices[0].message if self.choices else AnswerMessage()

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
