"""A tool that a caller offers, and a call of one, whole or in parts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.arguments import arguments_text
from specdec.errors import FieldInvalid, FieldRequired

ROLES = ("system", "user", "assistant", "tool")
MAX_TOOLS = 128
"""Most tools of a request, and most calls of a message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask the caller to call."""

    name: str
    description: str
    parameters: str
    """The JSON Schema of its arguments, as text."""
    strict: bool
    """Whether the arguments of a call must be of the schema."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        schema: dict[str, Any] = json.loads(self.parameters)
        return schema

    @property
    def described(self) -> dict[str, Any]:
        """The tool as chat templates read it, which is as OpenAI's API spells it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for."""

    name: str
    arguments: str
    """A JSON object, as text."""
    id: str = ""
    """The caller's name of the call; empty where the model has just written it."""

    @classmethod
    def earlier(cls, name: str, arguments: Any, call_id: str) -> "ToolCall":
        """A call of an earlier answer, in the form in which the caller sends its arguments back."""
        return cls(name, arguments_text(arguments), call_id)


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What more of a call is known; the parts of one call follow each other."""

    index: int
    """Place of the call among those of its message."""
    id: str = ""
    """The call's id; only in its first part."""
    name: str = ""
    """The name of the tool; only in the first part."""
    arguments: str = ""
    """The next characters of the arguments."""


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model writes before its answer, for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What more of a message is known."""

    content: str = ""
    """The next characters of the text that stands around the calls."""
    calls: tuple[CallDelta, ...] = ()
    """The next parts of calls, at most one of each call."""
    reasoning: str = ""
    """The next characters of what the model thinks before its answer."""

    def __bool__(self) -> bool:
        return bool(self.content or self.calls or self.reasoning)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of tools that an assistant's message asked for."""
    tool_call_id: str = ""
    """The call that a tool's message answers."""
    name: str = ""
    """Who speaks, or the tool that answers, for templates that print it."""
    reasoning: str = ""
    """The thinking before an assistant's content, for templates that print it."""


def check_messages(messages: Sequence[Message]) -> None:
    """Raise FieldRequired or FieldInvalid unless there are messages, and each is well formed."""
    if not messages:
        raise FieldRequired("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        _check(f"messages[{index}]", message)


def _check(place: str, message: Message) -> None:
    if message.role not in ROLES:
        roles = ", ".join(ROLES)
        raise FieldInvalid(f"{place}.role must be one of {roles}, got {message.role!r}", f"{place}.role")
    if message.role == "tool" and not message.tool_call_id:
        raise FieldRequired(f"{place}.tool_call_id is required", f"{place}.tool_call_id")
    if message.tool_calls and message.role != "assistant":
        raise FieldInvalid(f"{place}.tool_calls belong to the assistant", f"{place}.tool_calls")
