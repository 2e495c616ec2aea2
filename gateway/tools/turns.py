"""Converts messages to the turns that chat templates read, with ids of calls in the form that a format requires."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.tools.arguments import HugeNumbers, arguments_object
from gateway.tools.template import Turn
from gateway.tools.values import Message, ToolCall

_NAME = "specdec_probe"
_ARGUMENTS = {"specdec_argument": None}
"""Call that reveals the style of a template."""
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""Mistral's chat templates refuse other ids."""
_KIMI_ID = re.compile(r"functions\.[^:]+:\d+")
"""Kimi's chat templates render this id in place of the name."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """Form of calls that a chat template accepts."""

    text_arguments: bool = False
    """Whether arguments are JSON texts, as for DeepSeek's templates; otherwise objects."""
    one_call: bool = False
    """Whether only one call of a message is rendered, as by Llama's templates, which refuse several."""
    null_content: bool = False
    """Whether a message of calls alone may have no content, which DeepSeek's templates tell from an empty one."""

    @classmethod
    def of(cls, render: Callable[[Sequence[Turn]], str]) -> "CallStyle":
        """Find the style of a template. `render` returns an empty text for turns that the template refuses."""

        def shown(arguments: object, content: str | None, count: int = 1) -> str:
            function = {"name": _NAME, "arguments": arguments}
            call = {"id": "123456789", "type": "function", "function": function}  # Mistral's templates accept this id
            answer: Turn = {"role": "assistant", "content": content, "tool_calls": [call] * count}
            return render([{"role": "user", "content": "?"}, answer])

        as_text = json.dumps(_ARGUMENTS)
        objects, texts = ([shown(each, content) for content in (None, "")] for each in (_ARGUMENTS, as_text))
        good = any(_NAME in text and str(_ARGUMENTS) not in text for text in objects)
        text_arguments = not good and any(_NAME in text for text in texts)
        null, empty = texts if text_arguments else objects
        arguments, content = as_text if text_arguments else _ARGUMENTS, None if _NAME not in empty else ""
        one, two = (shown(arguments, content, count).count(_NAME) for count in (1, 2))
        written = any(null.count(word) > empty.count(word) for word in ("None", "null"))
        return cls(text_arguments, two < 2 * one, _NAME in null and not (written and _NAME in empty))


PLAIN = CallStyle()


def turns_of(messages: Sequence[Message], tool_format: str, huge: HugeNumbers, style: CallStyle = PLAIN) -> list[Turn]:
    """Return the turns of a conversation.

    Args:
        messages: messages of the conversation.
        tool_format: name of the model's format of calls.
        huge: passes numbers beyond the range of floats through the template.
        style: form of calls that the template accepts.
    """
    ids, keep = _CallIds(tool_format), None if style.text_arguments else huge.keep
    parts = (part for message in messages for part in (_with_one_call(message) if style.one_call else [message]))
    turns = [_turn(part, ids, keep) for part in parts]
    for turn in turns if style.null_content else ():
        if "tool_calls" in turn and not turn["content"]:
            turn["content"] = None
    return turns


def _with_one_call(message: Message) -> Iterator[Message]:
    """Yield a message as messages of at most one call, the first with the content and the thinking."""
    yield replace(message, tool_calls=message.tool_calls[:1])
    for call in message.tool_calls[1:]:
        yield Message(message.role, "", (call,), name=message.name)


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
