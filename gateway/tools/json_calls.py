"""Parses tool calls written as JSON or Python, whole or incrementally."""

import ast
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.tools.arguments import arguments_text
from gateway.tools.values import ToolCall


class JsonObject:
    """Finds the end of a JSON object incrementally, without validating its content."""

    def __init__(self, depth: int = 0) -> None:
        """Args: depth: number of open braces before the text."""
        self.ended = False
        """Whether the object is closed, or the last character cannot be part of it."""
        self._depth = depth
        self._string = False
        self._escaped = False

    @property
    def whole(self) -> bool:
        """Whether the object is closed."""
        return self.ended and self._depth == 0

    @property
    def inside(self) -> bool:
        """Whether a string in the object is open."""
        return self._string

    def take(self, text: str) -> int:
        """Read text and return how many of its characters belong to the object."""
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
        elif character == "<":  # valid in JSON only within strings, so a tag begins
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


class JsonStrings:
    """Finds incrementally whether a text of JSON objects, alone or in a list, is inside a string."""

    def __init__(self) -> None:
        self._object: JsonObject | None = None
        self._between = "[, \r\n\t"
        """Characters allowed before the next object; empty after any others, which are no JSON."""

    @property
    def inside(self) -> bool:
        """Whether a string is open."""
        return self._object is not None and self._object.inside

    def take(self, text: str) -> None:
        """Read the next characters."""
        while text and self._between:
            if self._object is None:
                text = text.lstrip(self._between)
                if text:
                    self._object, self._between = JsonObject(), ", \r\n\t" if text[0] == "{" else ""
            else:
                text = text[self._object.take(text) :]
                if self._object.ended:
                    self._object = None


def call_of(value: Any) -> ToolCall:
    """Convert a JSON value to a call; raises ValueError if it is not a call.

    Missing arguments become an empty object, and arguments encoded twice are decoded.
    """
    match value:
        case {"function": dict(inner)} if len(value) == 1 or value.get("type") == "function":
            return call_of(inner)
        case {"name": str(name), **others} if name:
            given = others.get("arguments", others.get("parameters"))
            if given in (None, []) or isinstance(given, dict):
                return ToolCall(name, json.dumps(given or {}, ensure_ascii=False))
            if isinstance(given, str) and isinstance(json.loads(given or "{}"), dict | str):
                return ToolCall(name, arguments_text(given))
    raise ValueError("a call has a name and an object of arguments")


def read_objects(text: str) -> list[ToolCall]:
    """Parse consecutive JSON calls, separated by semicolons or commas; raises ValueError for anything else."""
    decoder, calls, rest = json.JSONDecoder(), [], text.removeprefix("<|python_tag|>").lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        calls += [call_of(each) for each in (value if isinstance(value, list) else [value])]
        rest = rest[end:].lstrip("; \n\t,")
    return calls


def read_python(text: str) -> list[ToolCall]:
    """Parse a Python list of calls with named, literal arguments; raises ValueError for anything else."""
    tree = ast.parse(text.removeprefix("<|python_start|>").removesuffix("<|python_end|>"), mode="eval").body
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("no list of calls")
    return [_python_call(each) for each in tree.elts]


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    arguments = {str(each.arg): ast.literal_eval(_JsonNames().visit(each.value)) for each in node.keywords}
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(ast.unparse(node.func), text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


class _JsonNames(ast.NodeTransformer):
    """Replaces JSON's names of values, which models write inside Python, by the values."""

    _VALUES: ClassVar[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._VALUES[node.id]) if node.id in self._VALUES else node
