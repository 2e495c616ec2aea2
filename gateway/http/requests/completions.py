"""The bodies of the endpoints for completions: OpenAI's fields, with vLLM's additions and ours."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway.bounds import MAX_IDS
from gateway.callers.caller import MAX_NAME, PriorityClass
from gateway.http.requests.body import Body
from gateway.http.requests.fields import (
    MAX_INT,
    BadWords,
    BeamWidth,
    CacheSalt,
    Choices,
    Count,
    GammaField,
    Ids,
    JustOne,
    JustZero,
    Length,
    LengthPenalty,
    Lenience,
    Logprobs,
    Metadata,
    ModelName,
    Name,
    Natural,
    Nothing,
    Off,
    PredictedField,
    Prompts,
    ServiceTier,
    SessionId,
    StopField,
    StructuredBody,
    TemplateArguments,
    Truncation,
    Unread,
)
from gateway.http.requests.messages import Messages, TemplateBody, ThinkingFields
from gateway.http.requests.tools import ToolsBody
from gateway.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, is_seeded, named_options, sampling_params
from gateway.tools.formats import DEFAULT, ToolFormat
from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.errors import FieldInvalid, FieldRequired
from specdec.planning.gamma_policy import AUTO
from specdec.rules.speculation import MAX_DEPTH, MAX_DRAFTERS, MAX_NODES, Mode, TreeOptions
from specdec.sampling.params import MAX_SEED, SamplingParams


def _number(**limits: float) -> WithJsonSchema:
    """Return the JSON schema of a number. SamplingParams checks the value itself."""
    return WithJsonSchema({"type": "number", **limits})


def _parse_top_k(value: int) -> int:
    """Read vLLM's -1, which means no limit, as 0."""
    return 0 if value == -1 else value


_BIAS_SCHEMA = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": MAX_IDS,
}


def _parse_bias(value: dict[str, float]) -> dict[int, float]:
    if len(value) > MAX_IDS:
        raise FieldInvalid(f"logit_bias takes at most {MAX_IDS} token ids, got {len(value)}", "logit_bias")
    for token in value:
        if not token.isascii() or not token.isdecimal() or len(token) > 10:
            raise FieldInvalid(f"logit_bias: {token!r} is not a token id", "logit_bias")
    return {int(token): bias for token, bias in value.items()}


TopK = Annotated[
    int, AfterValidator(_parse_top_k), WithJsonSchema({"type": "integer", "minimum": -1, "maximum": MAX_INT})
]


class SamplingBody(Body):
    """The fields of SamplingParams that a caller may set; one that is left out has its default there."""

    temperature: Annotated[float, _number(minimum=0, maximum=2)] | None = None
    top_p: Annotated[float, _number(minimum=0, maximum=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, _number(minimum=0, maximum=1)] | None = None
    seed: Annotated[int, WithJsonSchema({"type": "integer", "minimum": -MAX_SEED - 1, "maximum": MAX_SEED})] | None = (
        None
    )
    presence_penalty: Annotated[float, _number(minimum=-2, maximum=2)] | None = None
    frequency_penalty: Annotated[float, _number(minimum=-2, maximum=2)] | None = None
    repetition_penalty: Annotated[float, _number(exclusiveMinimum=0, maximum=2)] | None = None
    logit_bias: Annotated[dict[str, float], AfterValidator(_parse_bias), WithJsonSchema(_BIAS_SCHEMA)] | None = None
    allowed_token_ids: Annotated[Ids, Field(min_length=1)] | None = None
    banned_token_ids: Ids | None = None
    min_tokens: Natural | None = None

    def sampling(self) -> SamplingParams:
        """The value, with a random seed where none is given; raises FieldInvalid."""
        return sampling_params(self.given())

    def given(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        fields = {name: getattr(self, name) for name in SamplingBody.model_fields}
        return {name: value for name, value in fields.items() if value is not None}


class OutputBody(SamplingBody):
    """The fields of vLLM that every API takes: how tokens are drawn, where the output ends, and how it is written."""

    stop: StopField = ()
    stop_token_ids: Ids | None = None
    bad_words: BadWords | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    cache_salt: CacheSalt | None = None


COMPLETION_TOKENS = 16
"""OpenAI's longest output of /v1/completions, in tokens, for a request that names none."""


class TreeBody(Body):
    """How trees of drafts are made; TreeOptions checks the values."""

    nodes: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_NODES})]
    width: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_NODES})]
    depth: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_DEPTH})]
    replacement: bool = False
    drafters: Annotated[list[Name], Field(max_length=MAX_DRAFTERS)] | None = None

    def options(self) -> TreeOptions:
        """The value; raises FieldInvalid."""
        return TreeOptions(self.nodes, self.width, self.depth, self.replacement, tuple(self.drafters or ()))


class SpeculationBody(Body):
    """How speculation is used for this request."""

    mode: Literal["off", "rejection", "block", "coupled"] | None = None
    gamma: GammaField = (None, AUTO)
    lenience: Lenience | None = None
    drafter: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    detail: bool | None = None
    tree: TreeBody | None = None


class PredictionBody(Body):
    """Text that much of the output is expected to repeat."""

    type: Literal["content"]
    content: PredictedField


class StreamOptions(Body):
    """How a stream is written."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    resumable: bool | None = None
    include_obfuscation: bool | None = None


class _DefaultOnlyFields(Body):
    """Fields of both kinds of completion that are known, and supported only at the value that does nothing."""

    best_of: JustOne | None = None
    priority: JustZero | None = None
    truncation_side: Literal["left"] | None = None
    watermarking: Off | None = None
    routed_experts_prompt_start: JustZero | None = None


class BeamBody(Body):
    """Beam search, with vLLM's parameters."""

    use_beam_search: bool | None = None
    beam_width: BeamWidth | None = None
    length_penalty: LengthPenalty | None = None
    early_stopping: bool | Literal["never"] | None = None

    def beams(self) -> BeamOptions | None:
        """The search; None to sample. Raises FieldInvalid or FieldRequired."""
        given = {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        if not self.use_beam_search:
            neutral = {"length_penalty": 1.0, "early_stopping": False}
            for name, value in {"beam_width": self.beam_width, **given}.items():
                if value is not None and value != neutral.get(name):
                    raise FieldInvalid(f"{name} is only allowed when use_beam_search is true", name)
            return None
        if self.beam_width is None:
            raise FieldRequired("beam_width is required when use_beam_search is true", "beam_width")
        stopping = EarlyStopping(str(self.early_stopping or False).lower())
        return BeamOptions(self.beam_width, 1.0 if self.length_penalty is None else self.length_penalty, stopping)


def _priority(tier: str | None) -> PriorityClass:
    """Return the class of OpenAI's service tier; its scale tier has no class of its own."""
    return PriorityClass.DEFAULT if tier in (None, "auto", "scale") else PriorityClass(tier)


class GenerationBody(OutputBody, StructuredBody, BeamBody, _DefaultOnlyFields):
    """The fields that both kinds of completion take."""

    default_only: ClassVar[frozenset[str]] = frozenset(_DefaultOnlyFields.model_fields)
    annotations_only: ClassVar[frozenset[str]] = frozenset(
        {"mm_payload", "request_id", "return_mm_kwargs", "return_token_offsets", "stream_interval"}
    )

    model: ModelName | None = None
    max_tokens: Length | None = None
    truncate_prompt_tokens: Truncation | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: SpeculationBody | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Logprobs | None = None
    user: Name | None = None
    session: SessionId | None = None
    expect_turn: Count | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: Unread | None = None
    prompt_cache_key: Unread | None = None
    prompt_cache_retention: Unread | None = None

    @property
    def options(self) -> StreamOptions:
        """How a stream is written; without effect on an answer in one piece."""
        return self.stream_options or StreamOptions()

    def _request(
        self, prompts: Sequence[Prompt], request_id: str, limits: tuple[int | None, int | None], logprobs: int | None
    ) -> GenerationRequest:
        """The request; `limits` are its max_tokens, as the caller gave them, and its cap_tokens."""
        if self.stream_options is not None and not self.stream:
            raise FieldInvalid("stream_options is only allowed when stream is true", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise FieldInvalid("prompt_logprobs is not allowed when stream is true", "prompt_logprobs")
        speculation = self.speculation or SpeculationBody()
        grammar_param, grammar = self.form() or ("", None)
        return GenerationRequest(
            prompt=prompts[0],
            more_prompts=tuple(prompts[1:]),
            truncate_prompt=self.truncate_prompt_tokens,
            sampling=replace(self.sampling(), grammar=grammar),
            named=named_options(self.given(), limits[0]),
            grammar_param=grammar_param,
            model=self.model or "",
            max_tokens=None if limits[0] == -1 else limits[0],  # vLLM's -1: as much as there is room for
            cap_tokens=limits[1],
            stop=self.stop,
            bad_words=tuple(self.bad_words or ()),
            shows_stop=bool(self.include_stop_str_in_output),
            shows_special=self.skip_special_tokens is False,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            mode=Mode(speculation.mode) if speculation.mode else None,
            seeded=is_seeded(self.seed),
            gamma=speculation.gamma[0],
            policy=speculation.gamma[1],
            drafter=speculation.drafter or "",
            detail=bool(speculation.detail),
            tree=speculation.tree.options() if speculation.tree else None,
            lenience=speculation.lenience,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            n=1 if self.n is None else self.n,
            request_id=request_id,
            user=self.user or "",
            session=self.session or "",
            expect_turn=self.expect_turn,
            priority=_priority(self.service_tier),
            cache_salt=self.cache_salt or "",
            beams=self.beams(),
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | {"suffix", "thinking_token_budget"}

    prompt: Prompts
    suffix: Literal[""] | None = None
    thinking_token_budget: Literal[-1] | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None

    def request(self, request_id: str) -> GenerationRequest:
        """The request that the body asks for; raises RequestError."""
        if self.shows_prompt_only and self.session:
            raise FieldInvalid("max_tokens must be at least 1 in a session, got 0", "max_tokens")
        cap = COMPLETION_TOKENS if self.max_tokens is None else None
        limit = 1 if self.shows_prompt_only else self.max_tokens
        prompts = self.prompt if self.add_special_tokens is not False else tuple(map(_without_special, self.prompt))
        request = self._request(prompts, request_id, (limit, cap), self.logprobs)
        if self.echo and request.prompt_logprobs is None:
            request = replace(request, prompt_logprobs=self.logprobs)
        return request

    @property
    def shows_prompt_only(self) -> bool:
        """Whether no output is shown. One token is still generated, which ends the request."""
        return bool(self.echo) and self.max_tokens == 0


def _without_special(prompt: Prompt) -> Prompt:
    return replace(prompt, special=False) if isinstance(prompt, TextPrompt) else prompt


class _ChatDefaultOnlyFields(Body):
    """Fields of chats that are known, and supported only at the value that does nothing."""

    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    echo: Off | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    audio: None = None
    web_search_options: None = None
    return_prompt_text: Off | None = None


class ChatBody(GenerationBody, ToolsBody, ThinkingFields, TemplateBody, _ChatDefaultOnlyFields):
    """POST /v1/chat/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | _ChatDefaultOnlyFields.model_fields.keys()
    annotations_only: ClassVar[frozenset[str]] = GenerationBody.annotations_only | {"prompt_cache_options"}

    messages: Messages = Field(json_schema_extra={"minItems": 1})
    chat_template_kwargs: TemplateArguments | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    max_completion_tokens: Length | None = None
    prediction: PredictionBody | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None

    def request(self, request_id: str, tool_format: ToolFormat = DEFAULT) -> GenerationRequest:
        """The request that the body asks for, of a model that writes calls in that format; raises RequestError."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise FieldInvalid("max_tokens and max_completion_tokens differ; give one", "max_completion_tokens")
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise FieldInvalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        logprobs = self.top_logprobs or 0 if self.logprobs else None
        arguments = self.thinking_arguments | (self.chat_template_kwargs or {})
        prompt = self.opened(ChatPrompt(self.messages, template_arguments=arguments))
        request = self._request((prompt,), request_id, (limit, None), logprobs)
        prediction = self.prediction.content if self.prediction else ""
        shown = self.include_reasoning is not False
        request = replace(request, prediction=prediction, thinking_budget=self.budget, shows_thinking=shown)
        if self.thinking_token_budget not in (None, -1):
            request.check_thinking(tool_format, "thinking_token_budget")
        return request.with_tools(self.asked(), tool_format)
