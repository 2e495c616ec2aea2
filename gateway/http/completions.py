"""The bodies of the endpoints for completions and for tokens: OpenAI's fields, with vLLM's additions and ours."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gateway.http.body import Body
from gateway.http.fields import (
    AtLeastOne,
    Choices,
    GammaField,
    Ids,
    JustOne,
    JustZero,
    Lenience,
    Logprobs,
    Natural,
    Naturals,
    Nothing,
    Off,
    On,
    PromptField,
    StopField,
)
from gateway.http.messages import Messages, chat_prompt
from gateway.http.sampling import SamplingBody
from gateway.http.structured import StructuredBody
from gateway.http.tools import ToolsBody, only_one
from gateway.priority import PriorityClass
from gateway.request import MAX_NAME, GenerationRequest, Prompt, TextPrompt, check_prompt
from gateway.tools.formats import DEFAULT, ToolFormat
from specdec.errors import FieldInvalid, FieldRequired
from specdec.rules.params import Mode

COMPLETION_TOKENS = 16
"""OpenAI's longest output of /v1/completions, in tokens, for a request that names none."""


class SpeculationBody(Body):
    """How speculation is used for this request."""

    mode: Literal["off", "rejection", "block", "coupled"] | None = None
    gamma: GammaField = None
    lenience: Lenience | None = None


class StreamOptions(Body):
    """How a stream is written."""

    include_usage: bool | None = None
    include_obfuscation: Off | None = None


class _DefaultOnlyFields(Body):
    """Fields of both kinds of completion that are known, and supported only at the value that does nothing."""

    best_of: JustOne | None = None
    use_beam_search: Off | None = None
    include_stop_str_in_output: Off | None = None
    skip_special_tokens: On | None = None
    spaces_between_special_tokens: On | None = None
    priority: JustZero | None = None
    echo: Off | None = None


class GenerationBody(SamplingBody, StructuredBody, _DefaultOnlyFields):
    """The fields that both kinds of completion take."""

    default_only: ClassVar[frozenset[str]] = frozenset(_DefaultOnlyFields.model_fields)

    model: str | None = None
    max_tokens: AtLeastOne | None = None
    n: Choices | None = None
    stop: StopField = ()
    stop_token_ids: Ids | None = None
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

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _request(
        self, prompt: Prompt, request_id: str, limits: tuple[int | None, int | None], logprobs: int | None
    ) -> GenerationRequest:
        """The request; `limits` are its max_tokens and cap_tokens."""
        if self.stream_options is not None and not self.stream:
            raise FieldInvalid("stream_options is only allowed when stream is true", "stream_options")
        speculation = self.speculation or SpeculationBody()
        grammar_param, grammar = self.form() or ("", None)
        return GenerationRequest(
            prompt=prompt,
            sampling=replace(self.sampling(), grammar=grammar),
            grammar_param=grammar_param,
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


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | {"suffix", "add_special_tokens"}

    prompt: PromptField
    suffix: Literal[""] | None = None
    add_special_tokens: On | None = None
    logprobs: Logprobs | None = None

    def request(self, request_id: str, tool_format: ToolFormat = DEFAULT) -> GenerationRequest:
        """The request that the body asks for; raises RequestError."""
        cap = COMPLETION_TOKENS if self.max_tokens is None else None
        return self._request(self.prompt, request_id, (self.max_tokens, cap), self.logprobs)


class _ChatDefaultOnlyFields(Body):
    """Fields of chats that are known, and supported only at the value that does nothing."""

    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None
    add_generation_prompt: On | None = None
    continue_final_message: Off | None = None
    add_special_tokens: Off | None = None


class ChatBody(GenerationBody, ToolsBody, _ChatDefaultOnlyFields):
    """POST /v1/chat/completions."""

    default_only: ClassVar[frozenset[str]] = GenerationBody.default_only | _ChatDefaultOnlyFields.model_fields.keys()

    messages: Messages = Field(json_schema_extra={"minItems": 1})
    max_completion_tokens: AtLeastOne | None = None
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
        tools = self.offered()
        only_one(self.form(), tools)
        request = self._request(chat_prompt(self.messages, tools), request_id, (limit, None), logprobs)
        form = self.tool_grammar(tools, tool_format)
        if form is None:
            return request
        return replace(request, sampling=replace(request.sampling, grammar=form[1]), grammar_param=form[0])


class TokenizeBody(Body):
    """POST /v1/tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None

    def input(self) -> Prompt:
        """What is to be tokenized; raises RequestError."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldRequired("exactly one of prompt and messages is required", "prompt")
        prompt = TextPrompt(self.prompt or "") if self.messages is None else chat_prompt(self.messages)
        check_prompt(prompt)
        return prompt


class DetokenizeBody(Body):
    """POST /v1/detokenize."""

    model: str | None = None
    tokens: Naturals
