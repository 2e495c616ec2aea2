"""Input items of the Responses API as the messages of a chat; the items of one answer are one message."""

from typing import Any

from specdec.errors import FieldInvalid, UnsupportedParameter

Message = dict[str, Any]


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
                function = {"name": name, "arguments": item.get("arguments")}
                self._answer().setdefault("tool_calls", []).append(
                    {"id": call_id, "type": "function", "function": function}
                )
            case {"type": "function_call_output", "call_id": str(call_id)}:
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
