"""Tools, tool calls and messages, whole or in parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.arguments import arguments_text
from specdec.errors import FieldInvalid, FieldRequired, RequestError

ROLES = ("system", "user", "assistant", "tool")
MAX_TOOLS = 128
"""Most tools of a request, and most calls of a message."""

NO_PARAMETERS = '{"type": "object", "properties": {}}'
"""Schema of a function that names no parameters."""

Document = Mapping[str, str]
"""Texts of a document by name, such as `title` and `text`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Function that the model may ask the caller to call."""

    name: str
    description: str
    parameters: str
    """JSON Schema of the arguments, as text."""
    strict: bool
    """Whether the arguments of a call must match the schema."""
    custom: bool = False
    """Whether callers see the only argument, a text, in place of the arguments."""
    lark: str = ""
    """Lark grammar of a custom tool's input; empty if the schema says everything."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        schema: dict[str, Any] = json.loads(self.parameters)
        return schema

    @property
    def described(self) -> dict[str, Any]:
        """Tool in OpenAI's notation, which chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call requested by the model."""

    name: str
    arguments: str
    """JSON object, as text."""
    id: str = ""
    """Id of the call; empty for a call that the model has just written."""
    custom: bool = False
    """Whether `arguments` is the input of a custom tool, and not JSON."""

    @classmethod
    def earlier(cls, name: str, arguments: Any, call_id: str) -> "ToolCall":
        """Create a call of an earlier answer from the arguments that the caller sends back."""
        return cls(name, arguments_text(arguments), call_id)


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Next part of a call."""

    index: int
    """Index of the call in its message."""
    id: str = ""
    """Id of the call; only in its first part."""
    name: str = ""
    """Name of the tool; only in the first part."""
    arguments: str = ""
    """Next characters of the arguments."""
    custom: bool = False
    """Whether `arguments` is the input of a custom tool, and not JSON."""


@dataclass(frozen=True, slots=True)
class Thought:
    """Thinking, written by the model before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """Next part of a message."""

    content: str = ""
    """Next characters of the text around the calls."""
    calls: tuple[CallDelta, ...] = ()
    """Next parts of calls, at most one per call."""
    reasoning: str = ""
    """Next characters of the thinking."""

    def __bool__(self) -> bool:
        return bool(self.content or self.calls or self.reasoning)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of an assistant's message."""
    tool_call_id: str = ""
    """Id of the call that a tool's message answers."""
    name: str = ""
    """Name of the speaker or tool, for templates that print it."""
    reasoning: str = ""
    """Thinking before an assistant's content, for templates that print it."""

    def __reduce__(self) -> tuple[type["Message"], tuple[object, ...]]:
        """Pickle by the constructor, in a third of the time of a data class: a conversation may have thousands."""
        return Message, (self.role, self.content, self.tool_calls, self.tool_call_id, self.name, self.reasoning)


def check_messages(messages: Sequence[Message]) -> None:
    """Raise FieldRequired or FieldInvalid if there are no messages or one is malformed."""
    if not messages:
        raise FieldRequired("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        if (found := _mistake(message)) is not None:
            kind, field, wrong = found
            place = f"messages[{index}].{field}"
            raise kind(f"{place} {wrong}", place)


def _mistake(message: Message) -> tuple[type[RequestError], str, str] | None:
    """Return the error of a malformed message, its field, and what is wrong with it."""
    if message.role not in ROLES:
        return FieldInvalid, "role", f"must be one of {', '.join(ROLES)}, got {message.role!r}"
    if message.role == "tool" and not message.tool_call_id:
        return FieldRequired, "tool_call_id", "is required"
    if message.tool_calls and message.role != "assistant":
        return FieldInvalid, "tool_calls", "belong to the assistant"
    return None
