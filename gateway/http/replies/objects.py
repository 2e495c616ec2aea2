"""The answers of the HTTP API: OpenAI's bodies and chunks, with vLLM's additions and ours."""

from typing import Literal

from pydantic import BaseModel

from gateway.http.replies.logprobs import ChatLogprobs, CompletionLogprobs
from gateway.http.replies.prompt_logprobs import PromptLogprobs
from gateway.http.replies.statistics import Metrics, SpeculationReport, Usage
from specdec.wire.generation import DrafterState
from specdec.wire.report import RoundReport

FinishReasonField = Literal["stop", "length", "tool_calls"]


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
    prompt_logprobs: PromptLogprobs | None = None
    """Only where they are asked for by this name."""
    token_ids: list[int] | None = None
    rounds: list[RoundReport] | None = None


class Completion(Answer):
    """The answer, or a chunk of it, of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class FunctionCall(BaseModel):
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class CustomCall(BaseModel):
    """A custom tool and its input, or the next characters of the input."""

    name: str | None = None
    input: str


class CalledTool(BaseModel):
    """A call that the model asks for: of a function, or of a custom tool."""

    id: str
    type: Literal["function", "custom"]
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class FunctionCallPart(BaseModel):
    """A part of a call: the name in its first chunk, and the next characters of the arguments."""

    name: str | None = None
    arguments: str


class CalledToolPart(BaseModel):
    """A part of a call that the model asks for; the first has the call's id and type."""

    index: int
    """The call's place among those of the message."""
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionCallPart | None = None
    custom: CustomCall | None = None


class AssistantMessage(BaseModel):
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str | None
    """Null where there are calls and no text."""
    refusal: None
    reasoning_content: str | None = None
    """Thinking before the answer; set only if there is any."""
    reasoning: str | None = None
    """Copy of `reasoning_content`, under the other name that clients use."""
    tool_calls: list[CalledTool] | None = None


class ChatChoice(BaseModel):
    """A message and why it ended."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField
    stop_reason: str | None = None
    token_ids: list[int] | None = None
    rounds: list[RoundReport] | None = None


class ChatCompletion(Answer):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    """Only where they are asked for."""


class Delta(BaseModel):
    """A part of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CalledToolPart] | None = None


class DeltaChoice(BaseModel):
    """A part of a message; in the last chunk, why the message ended."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonField | None
    stop_reason: str | None = None
    token_ids: list[int] | None = None
    rounds: list[RoundReport] | None = None


class ChatCompletionChunk(Answer):
    """A chunk of /v1/chat/completions."""

    object: Literal["chat.completion.chunk"]
    choices: list[DeltaChoice]


class KnownDrafter(BaseModel):
    """A drafter of the model's verifiers; its address is not told."""

    kind: str
    """Kind of drafter; empty until known."""
    model: str
    """Empty until known."""
    state: Literal["ready", "connecting", "refused", "unauthenticated", "unknown"]


def known_drafter(drafter: DrafterState) -> KnownDrafter:
    """Return a drafter as shown to callers, without the reason of a refusal, which is for operators only."""
    state = drafter.state.partition(":")[0]
    known = {"kind": drafter.kind, "model": drafter.model}
    match state:
        case "ready" | "connecting" | "refused" | "unauthenticated":
            return KnownDrafter(**known, state=state)
    return KnownDrafter(**known, state="unknown")


class Model(BaseModel):
    """A model or an adapter, and its limits."""

    id: str
    parent: str | None
    """Model that this is an adapter of."""
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "specdec"
    max_model_len: int
    vocab_size: int
    gamma_max: int
    tokenizer_hash: str
    system_fingerprint: str
    drafters: list[KnownDrafter]
    """Drafters as seen by the verifiers; ready if any verifier reaches it."""


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokens(BaseModel):
    """POST /tokenize, as vLLM answers it."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None
    """Each token as the vocabulary writes it; null unless asked for."""


class Text(BaseModel):
    """POST /detokenize, as vLLM answers it."""

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
