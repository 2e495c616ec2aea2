"""The answers of the HTTP API: OpenAI's bodies and chunks, with vLLM's additions and ours."""

from typing import Literal

from pydantic import BaseModel

from gateway.http.logprobs import ChatLogprobs, CompletionLogprobs
from gateway.turns.statistics import Summary

FinishReasonField = Literal["stop", "length", "tool_calls"]


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculativeDecoding(BaseModel):
    """The Summary's fields that vLLM reports, under its names."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(BaseModel):
    """The object that vLLM puts its statistics into."""

    speculative_decoding: SpeculativeDecoding


class SpeculationReport(BaseModel):
    """What the request asked of speculation, and why rounds went without a draft."""

    mode: Literal["off", "rejection", "block", "coupled"]
    gamma: int | Literal["auto"] | None = None
    lenience: float | None = None
    lossy: bool
    """Whether the output may differ in distribution from the target's: lenience is below 1."""
    fallbacks: dict[str, int]


class SessionRef(BaseModel):
    """The session an answer belongs to."""

    id: str
    turn: int
    """Turns it has had so far: the next request's `expect_turn`."""


class Answer(BaseModel):
    """The fields that bodies and chunks share."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default", "flex", "priority"]
    usage: Usage | None = None
    metrics: Metrics | None = None
    """Null when no round had a draft."""
    speculation: SpeculationReport | None = None
    seed: int | None = None
    prompt_token_ids: list[int] | None = None
    session: SessionRef | None = None
    """Only when the request named it."""


class CompletionChoice(BaseModel):
    """A completion, or a part of one in a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReasonField | None
    stop_reason: str | None = None
    """The stop string that matched."""
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Completion(Answer):
    """The answer, or a chunk of it, of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class FunctionCall(BaseModel):
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class CalledTool(BaseModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: FunctionCall
    index: int | None = None
    """Its place among the calls of the message, in chunks alone."""


class AssistantMessage(BaseModel):
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str | None
    """Null where there are calls and no text."""
    refusal: None
    tool_calls: list[CalledTool] | None = None


class ChatChoice(BaseModel):
    """A message and why it ended."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField
    stop_reason: str | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Answer):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Delta(BaseModel):
    """A part of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CalledTool] | None = None


class DeltaChoice(BaseModel):
    """A part of a message; in the last chunk, why the message ended."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField | None
    stop_reason: str | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(Answer):
    """A chunk of /v1/chat/completions."""

    object: Literal["chat.completion.chunk"]
    choices: list[DeltaChoice]


class Model(BaseModel):
    """A model and its limits."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "specdec"
    max_model_len: int
    vocab_size: int
    gamma_max: int
    tokenizer_hash: str
    system_fingerprint: str


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokens(BaseModel):
    """POST /v1/tokenize, as vLLM answers it."""

    tokens: list[int]
    count: int
    max_model_len: int


class Text(BaseModel):
    """POST /v1/detokenize, as vLLM answers it."""

    prompt: str


class ErrorDetail(BaseModel):
    """OpenAI's error object; all four fields are always sent."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def metrics_of(summary: Summary) -> Metrics | None:
    """The statistics of speculation in vLLM's object; None when no round had a draft."""
    if not summary.num_spec_steps:
        return None
    return Metrics(speculative_decoding=SpeculativeDecoding.model_validate(summary, from_attributes=True))


def report_of(summary: Summary) -> SpeculationReport:
    """What the request asked of speculation, and why rounds went without a draft."""
    asked = summary.speculation
    if asked.mode == "off":
        return SpeculationReport(mode="off", lossy=False, fallbacks={})
    return SpeculationReport(
        mode=asked.mode.value,
        gamma="auto" if asked.gamma is None else asked.gamma,
        lenience=asked.lenience,
        lossy=asked.lossy,
        fallbacks=summary.fallbacks,
    )
