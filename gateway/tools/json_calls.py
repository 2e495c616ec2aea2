"""Calls of tools that models write as JSON: whole ones, and one that is read while it is written."""

import json
import re
from typing import Any

from gateway.tools.values import ToolCall

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL)
"""What stands before the arguments, where the name comes first."""


def head_of(text: str) -> tuple[str, int] | None:
    """The name of the call with which the text begins, and where its arguments begin; None where none begins yet."""
    match = _HEAD.match(text)
    if match is None:
        return None
    try:
        return json.loads(match[1]), match.end()
    except ValueError:
        return None


class JsonObject:
    """How far an object of JSON has been read; what it holds is not checked."""

    def __init__(self, depth: int = 0) -> None:
        """`depth` is 1 for an object that is open already."""
        self.ended = False
        """Whether it is closed, or what came cannot be a part of it."""
        self._depth = depth
        self._string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """How many of the next characters belong to it."""
        for position, character in enumerate(text):
            if self.ended or not self._has(character):
                return position
        return len(text)

    def _has(self, character: str) -> bool:
        if self._string:
            self._read_string(character)
        elif character == '"':
            self._string = True
        elif character in "{}":
            self._depth += 1 if character == "{" else -1
            self.ended = self._depth == 0
        elif character == "<":  # stands in JSON only within strings: a tag begins
            self.ended = True
            return False
        return True

    def _read_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            self._string = character != '"'


def call_of(value: Any) -> ToolCall:
    """The call that a JSON object is; raises ValueError when it is none."""
    match value:
        case {"name": str(name), "arguments": dict(given)} | {"name": str(name), "parameters": dict(given)} if name:
            return ToolCall(name, json.dumps(given, ensure_ascii=False))
    raise ValueError("a call has a name and an object of arguments")


def read_objects(text: str) -> list[ToolCall]:
    """Calls that stand behind each other, between semicolons; raises ValueError where there is something else."""
    decoder, calls, rest = json.JSONDecoder(), [], text.removeprefix("<|python_tag|>").lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        calls.append(call_of(value))
        rest = rest[end:].lstrip("; \n")
    return calls


def read_list(text: str) -> list[ToolCall]:
    """A JSON list of calls; raises ValueError where there is something else."""
    values = json.loads(text.removeprefix("[TOOL_CALLS]"))
    if not isinstance(values, list) or not values:
        raise ValueError("no list of calls")
    return [call_of(value) for value in values]
