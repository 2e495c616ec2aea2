"""Converts messages to the turns that chat templates read, with ids of calls in the form that a format requires."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from gateway.tools.arguments import HugeNumbers, arguments_object
from gateway.tools.template import Turn
from gateway.tools.values import Message, ToolCall

_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""Mistral's chat templates refuse other ids."""
_KIMI_ID = re.compile(r"functions\.[^:]+:\d+")
"""Kimi's chat templates render this id in place of the name."""


def turns_of(
    messages: Sequence[Message], tool_format: str, huge: HugeNumbers, *, text_arguments: bool = False
) -> list[Turn]:
    """Return the turns of a conversation.

    Args:
        messages: messages of the conversation.
        tool_format: name of the model's format of calls.
        huge: passes numbers beyond the range of floats through the template.
        text_arguments: whether arguments are JSON texts instead of objects.
    """
    ids, keep = _CallIds(tool_format), None if text_arguments else huge.keep
    return [_turn(message, ids, keep) for message in messages]


def _turn(message: Message, ids: "_CallIds", keep: Callable[[str], str] | None) -> Turn:
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [_written_call(call, ids.of_call(call), keep) for call in message.tool_calls]
    result_of = ids.of_result(message.tool_call_id) if message.tool_call_id else ""
    optional = {"tool_call_id": result_of, "name": message.name, "reasoning_content": message.reasoning}
    turn |= {key: value for key, value in optional.items() if value}
    if message.reasoning and message.content and message.tool_calls:
        turn["thinking"] = ""  # transformers adds the thinking by this name, which gpt-oss' template refuses here
    return turn


def _written_call(call: ToolCall, call_id: str, keep: Callable[[str], str] | None) -> dict[str, Any]:
    arguments = arguments_object(call.arguments, keep) if keep else call.arguments
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


class _CallIds:
    """Ids of the calls of one conversation, as its chat template requires them; callers' ids in most formats."""

    def __init__(self, tool_format: str) -> None:
        self._format = tool_format
        self._known: dict[str, str] = {}
        """Ids of Kimi's calls by the callers' ids."""
        self._count = 0
        """Number of calls so far."""

    def of_call(self, call: ToolCall) -> str:
        """Return the id of the next call."""
        self._count += 1
        if self._format != "kimi" or _KIMI_ID.fullmatch(call.id):
            return self.of_result(call.id)
        self._known[call.id] = f"functions.{call.name}:{self._count - 1}"
        return self._known[call.id]

    def of_result(self, call_id: str) -> str:
        """Return the id of the call that a result belongs to."""
        if self._format.startswith("mistral") and not _MISTRAL_ID.fullmatch(call_id):
            return hashlib.sha256(call_id.encode()).hexdigest()[:9]
        return self._known.get(call_id, call_id)
