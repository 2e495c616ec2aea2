"""The bodies of /v1/messages: what Anthropic's clients send, as the chat that it is."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from gateway.bounds import MAX_MESSAGES
from gateway.http.messages_api.content import messages_of, text_of_blocks
from gateway.http.requests.body import Body
from gateway.http.requests.completions import ChatBody
from gateway.http.requests.fields import CacheSalt, ModelName, Off, TemplateArguments
from gateway.http.requests.tools import ObjectText
from gateway.tools.values import MAX_TOOLS
from specdec.errors import UnsupportedParameter

Blocks = Annotated[str | list[dict[str, Any]], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}]})]
_HOSTED = ("web_search", "web_fetch", "code_execution", "tool_search")


class AnthropicMessage(Body):
    """One message: a text, or blocks of text, thinking, calls and their results."""

    annotations_only: ClassVar[frozenset[str]] = frozenset({"cache_control", "id", "model", "type", "usage"})

    role: Literal["user", "assistant", "system"]
    content: Blocks


class AnthropicTool(Body):
    """A tool that the client runs; one that the server would run has another type, and is left out."""

    annotations_only: ClassVar[frozenset[str]] = frozenset(
        {"allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples"}
    )

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class AnthropicChoice(Body):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    annotations_only: ClassVar[frozenset[str]] = frozenset({"display"})

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class AnthropicForm(Body):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """How much the model thinks, and the form of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicForm | None = None

    def fields(self) -> dict[str, Any]:
        """Return these settings as fields of a chat request."""
        form = (
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.format.schema_}}
            if self.format
            else None
        )
        return {"reasoning_effort": self.effort, "response_format": form}


class CountBody(Body):
    """POST /v1/messages/count_tokens, and the fields that a request for an answer shares with it."""

    annotations_only: ClassVar[frozenset[str]] = frozenset(
        {
            "anthropic_beta",
            "anthropic_version",
            "betas",
            "billing_policy",
            "cache_control",
            "context_management",
            "diagnostics",
            "fallback_credit_token",
            "inference_geo",
            "mm_payload",
            "return_mm_kwargs",
            "speed",
            "user_profile_id",
            "workspace_id",
        }
    )

    model: ModelName | None = None
    messages: list[AnthropicMessage] = Field(max_length=MAX_MESSAGES, fail_fast=True, json_schema_extra={"minItems": 1})
    system: Blocks | None = None
    tools: Annotated[list[ObjectText], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateArguments | None = None

    def chat(self) -> ChatBody:
        """Return the request as a chat request; raises RequestError."""
        return ChatBody.parse({name: value for name, value in self._fields().items() if value is not None})

    def _fields(self) -> dict[str, Any]:
        tools = [_tool(index, json.loads(tool)) for index, tool in enumerate(self.tools or ())]
        choice = self.tool_choice or AnthropicChoice(type="auto")
        system = [{"role": "system", "content": text_of_blocks("system", self.system)}] if self.system else []
        messages = [
            each
            for index, message in enumerate(self.messages)
            for each in messages_of(f"messages[{index}].content", message.role, message.content)
        ]
        last = messages[-1] if messages else {}
        begun = last.get("role") == "assistant" and last["content"] and "tool_calls" not in last
        budget = self.thinking.budget_tokens if self.thinking and self.thinking.type != "disabled" else None
        return {
            "model": self.model,
            "messages": system + messages,
            "tools": [tool for tool in tools if tool],
            "tool_choice": _choice(choice) if self.tools else None,
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
            "continue_final_message": True if begun else None,
            "enable_thinking": self.thinking.type != "disabled" if self.thinking else None,
            "thinking_budget": budget,
            "chat_template_kwargs": self.chat_template_kwargs,
            **(self.output_config or OutputConfig()).fields(),
        }


class MessagesBody(CountBody):
    """POST /v1/messages."""

    default_only: ClassVar[frozenset[str]] = frozenset({"watermarking"})

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    cache_salt: CacheSalt | None = None
    watermarking: Off | None = None

    def _fields(self) -> dict[str, Any]:
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        ends = {"max_tokens": self.max_tokens, "stop": self.stop_sequences, "stream": self.stream}
        return super()._fields() | sampling | ends | {"cache_salt": self.cache_salt}


def _choice(choice: AnthropicChoice) -> Any:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            return {"type": "function", "function": {"name": choice.name or ""}}
    return choice.type


def _tool(index: int, given: dict[str, Any]) -> dict[str, Any] | None:
    """The tool; None for one that a server of Anthropic's would run."""
    if str(given.get("type", "")).startswith(_HOSTED):
        return None
    tool = AnthropicTool.parse(given)
    if tool.type not in (None, "custom"):
        raise UnsupportedParameter(f"tools[{index}]: tools of type {tool.type!r} are not supported", f"tools[{index}]")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function | {"strict": tool.strict}}
