"""The messages of a conversation, with the calls of tools that earlier answers asked for and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.tools.values import ToolCall
from specdec.errors import FieldInvalid, FieldRequired

ROLES = ("system", "user", "assistant", "tool")


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
