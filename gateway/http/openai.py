"""The bodies of the OpenAI API that the gateway takes, with vLLM's additions and ours, and the value they come to."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gateway.http.body import Body
from gateway.http.fields import (
    AtLeastOne,
    Choices,
    GammaField,
    JustOne,
    JustZero,
    Lenience,
    Logprobs,
    MinP,
    Natural,
    Nothing,
    Off,
    On,
    Penalty,
    PromptField,
    Repetition,
    StopField,
    Temperature,
    TopK,
    TopP,
)
from gateway.http.messages import MessageBody, chat_prompt
from gateway.priority import PriorityClass
from gateway.request import MAX_NAME, GenerationRequest, Prompt, random_seed
from specdec.errors import FieldInvalid
from specdec.rules.params import Mode, SamplingParams

COMPLETION_TOKENS = 16
"""Output length of /v1/completions when none is asked for, as OpenAI has it."""

_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
)


class SpeculationBody(Body):
    """What speculation may do for this request."""

    mode: Literal["off", "rejection", "block", "coupled"] | None = None
    gamma: GammaField = None
    lenience: Lenience | None = None


class StreamOptions(Body):
    """How a stream is written."""

    include_usage: bool | None = None
    include_obfuscation: Off | None = None


class GenerationBody(Body):
    """What both kinds of completion take."""

    default_only: ClassVar[frozenset[str]] = frozenset(
        {
            "best_of",
            "use_beam_search",
            "include_stop_str_in_output",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "priority",
            "echo",
        }
    )

    model: str | None = None
    max_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    n: Choices | None = None
    min_p: MinP | None = None
    seed: Natural | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: Annotated[list[Natural], Field(min_length=1)] | None = None
    banned_token_ids: list[Natural] | None = None
    stop: StopField = ()
    stop_token_ids: list[Natural] | None = None
    min_tokens: Natural | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: SpeculationBody | None = None
    return_token_ids: bool | None = None
    user: str | None = None
    session: str | None = None
    expect_turn: Natural | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    best_of: JustOne | None = None
    use_beam_search: Off | None = None
    include_stop_str_in_output: Off | None = None
    skip_special_tokens: On | None = None
    spaces_between_special_tokens: On | None = None
    priority: JustZero | None = None
    echo: Off | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _request(
        self, prompt: Prompt, request_id: str, limits: tuple[int | None, int | None], logprobs: int | None
    ) -> GenerationRequest:
        """`limits` are max_tokens and cap_tokens."""
        if self.stream_options is not None and not self.stream:
            raise FieldInvalid("stream_options is only allowed when stream is true", "stream_options")
        speculation = self.speculation or SpeculationBody()
        return GenerationRequest(
            prompt=prompt,
            sampling=self._sampling(),
            model=self.model or "",
            max_tokens=limits[0],
            cap_tokens=limits[1],
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            mode=Mode(speculation.mode) if speculation.mode else None,
            seeded=self.seed is not None,
            gamma=speculation.gamma,
            lenience=1.0 if speculation.lenience is None else speculation.lenience,
            logprobs=logprobs,
            n=1 if self.n is None else self.n,
            request_id=request_id,
            user=self.user or "",
            session=self.session or "",
            expect_turn=self.expect_turn,
            priority=PriorityClass.DEFAULT if self.service_tier in (None, "auto") else PriorityClass(self.service_tier),
            cache_salt=self.cache_salt or "",
        )

    def _sampling(self) -> SamplingParams:
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        given.setdefault("seed", random_seed())
        top_k = 0 if self.top_k in (None, -1) else self.top_k
        return SamplingParams(
            top_k=top_k or 0,
            logit_bias=_bias(self.logit_bias or {}),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            banned_token_ids=tuple(self.banned_token_ids or ()),
            **given,
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | {"suffix", "add_special_tokens"}

    prompt: PromptField
    suffix: Literal[""] | None = None
    add_special_tokens: On | None = None
    logprobs: Logprobs | None = None

    def request(self, request_id: str) -> GenerationRequest:
        """The value it comes to; raises RequestError."""
        cap = COMPLETION_TOKENS if self.max_tokens is None else None
        return self._request(self.prompt, request_id, (self.max_tokens, cap), self.logprobs)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | {
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "response_format",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "web_search_options",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
    }

    messages: list[MessageBody] = Field(json_schema_extra={"minItems": 1})
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None
    add_generation_prompt: On | None = None
    continue_final_message: Off | None = None
    add_special_tokens: Off | None = None

    def request(self, request_id: str) -> GenerationRequest:
        """The value it comes to; raises RequestError."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise FieldInvalid("max_tokens and max_completion_tokens differ; give one", "max_completion_tokens")
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise FieldInvalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        logprobs = self.top_logprobs or 0 if self.logprobs else None
        return self._request(chat_prompt(self.messages), request_id, (limit, None), logprobs)


def _bias(given: dict[str, float]) -> dict[int, float]:
    for token in given:
        if not token.isascii() or not token.isdecimal() or len(token) > 10:
            raise FieldInvalid(f"logit_bias: {token!r} is not a token id", "logit_bias")
    return {int(token): bias for token, bias in given.items()}
