"""Converts content blocks of Anthropic's messages to chat messages. Each tool result becomes a separate message."""

from typing import Any

from specdec.errors import FieldInvalid, UnsupportedParameter

Blocks = list[dict[str, Any]]


def messages_of(place: str, role: str, content: str | Blocks) -> list[dict[str, Any]]:
    """Return the chat messages of one message; raises RequestError. `place` names its content in errors."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    found = _Content(place, role)
    for block in blocks:
        found.add(block)
    return [*found.results, *found.said()]


class _Content:
    """Collected blocks of a message."""

    def __init__(self, place: str, role: str) -> None:
        self.results: list[dict[str, Any]] = []
        self._place, self._role = place, role
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def add(self, block: dict[str, Any]) -> None:
        """Add a block."""
        match block:
            case {"type": "text", "text": str(text)}:
                self._texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                self._thoughts.append(text)
            case {"type": "redacted_thinking"}:
                return
            case {"type": "tool_use", "id": str(call_id), "name": str(name)} if self._role == "assistant":
                function = {"name": name, "arguments": block.get("input")}
                self._calls.append({"id": call_id, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(call_id)} if self._role == "user":
                result = text_of_blocks(self._place, block.get("content") or "")
                self.results.append({"role": "tool", "tool_call_id": call_id, "content": result})
            case {"type": str(kind)}:
                raise UnsupportedParameter(f"{self._place}: a block of type {kind!r} is not supported", self._place)
            case _:
                raise FieldInvalid(f"{self._place}: a block must have a type and its fields", self._place)

    def said(self) -> list[dict[str, Any]]:
        """Return the message besides the tool results; empty if there are only results."""
        if self.results and not self._texts:
            return []
        message: dict[str, Any] = {"role": self._role, "content": "".join(self._texts)}
        calls = {"tool_calls": self._calls} if self._calls else {}
        return [message | calls | ({"reasoning_content": "".join(self._thoughts)} if self._thoughts else {})]


def text_of_blocks(place: str, blocks: Any) -> str:
    """Return the text of a string or of text blocks; raises UnsupportedParameter."""
    if isinstance(blocks, str):
        return blocks
    given = blocks if isinstance(blocks, list) else [blocks]
    texts = [block.get("text") for block in given if isinstance(block, dict) and block.get("type") == "text"]
    if len(texts) < len(given) or not all(isinstance(text, str) for text in texts):
        raise UnsupportedParameter(f"{place}: only blocks of text are supported here", place)
    return "\n".join(map(str, texts))
