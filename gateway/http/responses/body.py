"""The body of /v1/responses: what OpenAI's clients send, as the chat that it is."""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from gateway.http.requests.body import Body
from gateway.http.requests.completions import ChatBody, OutputBody
from gateway.http.requests.fields import (
    JustZero,
    Logprobs,
    Metadata,
    ModelName,
    Name,
    Off,
    ServiceTier,
    StructuredOutputs,
    TemplateArguments,
    Unread,
)
from gateway.http.requests.tools import ObjectText
from gateway.tools.values import MAX_TOOLS
from specdec.errors import FieldInvalid, SessionNotFound, UnsupportedParameter

Message = dict[str, Any]
Input = Annotated[
    str | list[dict[str, Any]], WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]})
]
RESPONSE = re.compile(r"resp_([0-9a-f]{32})-([1-9][0-9]{0,8})")
"""The id of a response, made of a session's id and a turn's number."""
SHOWN = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "store"),
    *("temperature", "tool_choice", "tools", "top_p", "truncation", "user"),
}
"""Fields of a request that its response repeats unchanged."""
_LOGPROBS = "message.output_text.logprobs"
_HOSTED = ("web_search", "image_generation", "file_search", "code_interpreter")


class ReasoningOption(Body):
    """How the model thinks."""

    annotations_only: ClassVar[frozenset[str]] = frozenset({"context", "generate_summary", "summary"})

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class TextFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    def response_format(self) -> dict[str, Any]:
        """Return the form as a chat's `response_format`."""
        if self.type != "json_schema":
            return {"type": self.type}
        schema = {"name": self.name or "answer", "schema": self.schema_, "strict": self.strict}
        return {"type": self.type, "json_schema": schema}


class TextOption(Body):
    """The form and the length of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseTool(Body):
    """A function that the client runs."""

    annotations_only: ClassVar[frozenset[str]] = frozenset({"cache_control", "defer_loading"})

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseCustomTool(Body):
    """A tool of the client whose input is a text."""

    annotations_only: ClassVar[frozenset[str]] = frozenset({"allowed_callers", "cache_control", "defer_loading"})

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class AllowedChoice(Body):
    """A choice of a part of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class ResponsesBody(OutputBody):
    """POST /v1/responses: OpenAI's fields, and vLLM's, which a chat takes by the same names."""

    default_only: ClassVar[frozenset[str]] = frozenset({"enable_response_messages", "priority", "watermarking"})
    annotations_only: ClassVar[frozenset[str]] = frozenset(
        {
            "client_metadata",
            "max_tool_calls",
            "mm_payload",
            "prompt_cache_options",
            "request_id",
            "return_mm_kwargs",
            "stream_options",
        }
    )

    model: ModelName | None = None
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = None
    include: Annotated[list[str], Field(max_length=MAX_TOOLS)] | None = None
    top_logprobs: Logprobs | None = None
    stream: bool | None = None
    tools: Annotated[list[ObjectText], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningOption | None = None
    text: TextOption | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Off | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: Name | None = None
    prompt_cache_key: Unread | None = None
    prompt_cache_retention: Unread | None = None
    safety_identifier: Unread | None = None
    service_tier: ServiceTier | None = None
    chat_template_kwargs: TemplateArguments | None = None
    structured_outputs: StructuredOutputs | None = None
    include_reasoning: bool | None = None
    enable_response_messages: Off | None = None
    priority: JustZero | None = None
    watermarking: Off | None = None

    def chat(self, *, instructs: bool = True) -> ChatBody:
        """Return the request as a chat request, with its instructions if `instructs`; raises RequestError.

        One that continues a response is the next turn of its session.
        """
        session, turn = self._previous()
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        messages = messages_of(given)
        if self.instructions and instructs:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        text, reasoning = self.text or TextOption(), self.reasoning or ReasoningOption()
        scored = _LOGPROBS in (self.include or ()) and self.include_reasoning is not False
        fields = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "stream": self.stream,
            "tools": self._tools(),
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "logprobs": scored,
            "top_logprobs": self.top_logprobs if scored else None,
            "reasoning_effort": reasoning.effort,
            "response_format": text.format.response_format() if text.format else None,
            "user": self.user,
            "service_tier": self.service_tier,
            "session": session,
            "expect_turn": turn,
        }
        chat = ChatBody.parse({name: value for name, value in fields.items() if value is not None})
        names = (*OutputBody.model_fields, "chat_template_kwargs", "structured_outputs", "include_reasoning")
        return chat.model_copy(update={name: getattr(self, name) for name in names if name in self.model_fields_set})

    def _previous(self) -> tuple[str | None, int | None]:
        """The session that is continued, and the turns that it has."""
        if self.previous_response_id is None:
            return None, None
        match = RESPONSE.fullmatch(self.previous_response_id)
        if match is None:
            raise SessionNotFound("no such response", "previous_response_id")
        return match[1], int(match[2])

    def _tools(self) -> list[dict[str, Any]] | None:
        """The functions and custom tools; tools that a server of OpenAI's would run are left out."""
        own = [tool for tool in map(json.loads, self.tools or ()) if not _is_hosted(tool)]
        tools = []
        for index, each in enumerate(own):
            kind = each.get("type")
            if kind not in ("function", "custom"):
                place = f"tools[{index}].type"
                raise UnsupportedParameter(f"{place}: {kind!r} is not supported", place)
            tool = (ResponseTool if kind == "function" else ResponseCustomTool).parse(each)
            tools.append({"type": kind, kind: tool.model_dump(exclude={"type"})})
        return tools or None

    def _tool_choice(self) -> str | dict[str, Any] | None:
        """The choice as chats spell it."""
        if not isinstance(self.tool_choice, dict) or self.tool_choice.get("type") != "allowed_tools":
            return self.tool_choice
        allowed = AllowedChoice.parse(self.tool_choice)
        own = [each for each in allowed.tools if not _is_hosted(each)]
        return {"type": allowed.type, allowed.type: {"mode": allowed.mode, "tools": own}}


def _is_hosted(tool: dict[str, Any]) -> bool:
    """Whether a server of OpenAI's would run the tool."""
    return str(tool.get("type", "")).startswith(_HOSTED)


def messages_of(items: list[dict[str, Any]]) -> list[Message]:
    """The messages of a chat that the items are; raises RequestError."""
    found = _Messages()
    for index, item in enumerate(items):
        found.add(f"input[{index}]", item)
    return found.messages


class _Messages:
    """The messages so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, place: str, item: dict[str, Any]) -> None:
        """Add the item at that place of the input."""
        match item:
            case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
                self._call(call_id, "function", {"name": name, "arguments": item.get("arguments")})
            case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name)}:
                self._call(call_id, "custom", {"name": name, "input": item.get("input")})
            case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(call_id)}:
                result = _text(place, item.get("output"))
                self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
            case {"type": "reasoning"}:
                if thought := _thought(item):
                    self._begin()["reasoning_content"] = thought
            case {"role": str(role), **rest} if rest.get("type") in (None, "message"):
                self._say(role, _text(place, item.get("content")))
            case {"type": str(kind)}:
                raise UnsupportedParameter(f"{place}: an item of type {kind!r} is not supported", place)
            case _:
                raise FieldInvalid(f"{place}: an item must have a type or a role, and its fields", place)

    def _call(self, call_id: str, kind: str, called: dict[str, Any]) -> None:
        self._answer().setdefault("tool_calls", []).append({"id": call_id, "type": kind, kind: called})

    def _say(self, role: str, content: str) -> None:
        last = self.messages[-1] if self.messages else {}
        if role == "assistant" and last.get("role") == role and not last["content"] and "tool_calls" not in last:
            last["content"] = content  # its thinking came before
        else:
            self.messages.append({"role": role, "content": content})

    def _answer(self) -> Message:
        """The message of the assistant that the conversation ends with."""
        last = self.messages[-1] if self.messages else {}
        return last if last.get("role") == "assistant" else self._begin()

    def _begin(self) -> Message:
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _thought(item: dict[str, Any]) -> str:
    parts = [*(item.get("content") or []), *(item.get("summary") or [])]
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _text(place: str, content: Any) -> str:
    """The text of a content: a text, or parts that have one."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list() if all(isinstance(part, dict) for part in content):
            texts = [part.get("text", part.get("refusal")) for part in content]
            if all(isinstance(text, str) for text in texts):
                return "".join(map(str, texts))
    raise UnsupportedParameter(f"{place}: only text is supported", place)
