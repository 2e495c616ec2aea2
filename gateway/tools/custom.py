"""Custom tools, whose input is free text or a text of a grammar.

A model calls one like a function with a single string argument, so every format of calls has them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.tools.values import Tool, ToolCall

INPUT = "input"
"""Name of the argument."""
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_COMPACT_HEAD = f'{{"{INPUT}":"'
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*', re.DOTALL)
"""Matches the characters of a JSON string that have arrived completely."""
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")


def custom_tool(name: str, description: str, syntax: str = "", definition: str = "") -> Tool:
    """Return a custom tool.

    Args:
        name: name of the tool.
        description: what it does, for the model.
        syntax: `lark` or `regex`; empty for free text.
        definition: grammar of the input in that syntax.
    """
    argument: dict[str, Any] = {"type": "string"}
    if syntax:
        description = f"{description}\n\nThe {INPUT} matches this {syntax} grammar:\n{definition}".lstrip()
    if syntax == "regex":
        argument["pattern"] = f"^(?:{definition})$"
    schema = {"type": "object", "properties": {INPUT: argument}, "required": [INPUT], "additionalProperties": False}
    lark = definition if syntax == "lark" else ""
    return Tool(name, description, json.dumps(schema, ensure_ascii=False), bool(syntax), custom=True, lark=lark)


def earlier_call(name: str, given: str, call_id: str) -> ToolCall:
    """Return a call of an earlier answer from its input, as the function call that templates render."""
    return ToolCall.earlier(name, {INPUT: given}, call_id)


def as_function(call: ToolCall) -> ToolCall:
    """Return a call with JSON arguments, for a tool of any kind."""
    return replace(call, arguments=json.dumps({INPUT: call.arguments}, ensure_ascii=False)) if call.custom else call


class InputReader:
    """Converts the JSON arguments of a custom tool's call to its input, incrementally.

    Arguments in an unexpected form are the input unchanged, so nothing that the model wrote is lost.
    """

    def __init__(self) -> None:
        self._held = ""
        self._step: Callable[[], str] = self._read_head

    def feed(self, more: str) -> str:
        """Add the next characters of the arguments; return the next characters of the input."""
        self._held += more
        return self._step()

    def end(self) -> str:
        """End the arguments; return the rest of the input."""
        rest, self._held = self._held, ""
        return rest if self._step == self._read_rest and rest.strip() != "}" else ""

    def _read_head(self) -> str:
        if head := _HEAD.match(self._held):
            self._held, self._step = self._held[head.end() :], self._read_string
        elif _COMPACT_HEAD.startswith("".join(self._held.split())):
            return ""
        else:
            self._step = self._read_plain
        return self._step()

    def _read_string(self) -> str:
        whole = _WHOLE.match(self._held)
        text = whole[0] if whole else ""
        rest = self._held[len(text) :]
        if not rest.startswith('"') and (half := _HALF_PAIR.search(text)):
            text, rest = text[: half.start(1)], half[1] + rest
        if rest.startswith('"'):
            rest, self._step = rest[1:], self._read_rest
        self._held = rest
        return _decoded(text)

    def _read_rest(self) -> str:
        return ""

    def _read_plain(self) -> str:
        text, self._held = self._held, ""
        return text


def _decoded(text: str) -> str:
    """Return the text of the inside of a JSON string; text with an unknown escape is returned unchanged."""
    try:
        found = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
