"""Reads calls of tools from the text of a model, as it comes; what is no call is text, and nothing is lost."""

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gateway.tools.values import ToolCall

Piece = str | ToolCall
Reader = Callable[[str], list[ToolCall]]
"""Reads a whole text that consists of calls; raises ValueError when it does not."""


class ToolParser(ABC):
    """The text of one answer."""

    def __init__(self) -> None:
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether there is text that may be, or become, a part of a call."""
        return bool(self._held)

    @abstractmethod
    def feed(self, text: str) -> list[Piece]:
        """What is certain now that more text has come."""

    @abstractmethod
    def end(self) -> list[Piece]:
        """What is left when no more comes."""


class TaggedParser(ToolParser):
    """Calls between two tags, each a JSON object; text may stand around them."""

    def __init__(self, opening: str, closing: str) -> None:
        super().__init__()
        self._opening, self._closing = opening, closing
        self._behind_call = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        return list(self._certain())

    def end(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if rest.startswith(self._opening):
            return self._call(rest, rest.removeprefix(self._opening))
        return [rest] if rest else []

    def _certain(self) -> Iterator[Piece]:
        while True:
            text, opening, rest = self._held.partition(self._opening)
            if not opening:
                kept = overlap(text, self._opening)
                self._held = text[len(text) - kept :]
                yield from self._text(text[: len(text) - kept])
                return
            self._held = opening + rest
            if text.strip():
                yield from self._text(text)
            inner, closing, behind = rest.partition(self._closing)
            if not closing:
                return
            self._held, self._behind_call = behind, True
            yield from self._call(opening + inner + closing, inner)

    def _text(self, text: str) -> Iterator[str]:
        """The text, without the white space that stands behind a call."""
        if self._behind_call:
            text = text.lstrip()
        if text:
            self._behind_call = False
            yield text

    def _call(self, whole: str, inner: str) -> list[Piece]:
        try:
            return [call_of(json.loads(inner))]
        except (ValueError, RecursionError):
            return [whole]


class LeadingParser(ToolParser):
    """Calls that an answer begins with, or it has none: then it is all text."""

    def __init__(self, openings: Sequence[str], read: Reader) -> None:
        """`openings` are the texts that calls may begin with; `read` reads them all."""
        super().__init__()
        self._openings = openings
        self._read = read
        self._plain = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        begun = self._held.lstrip()
        if not self._plain and any(begun.startswith(each) or each.startswith(begun) for each in self._openings):
            return []
        self._plain = True
        return self._rest()

    def end(self) -> list[Piece]:
        if self._plain or not self._held:
            return self._rest()
        try:
            calls = self._read(self._held.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return self._rest()
        self._held = ""
        return list(calls)

    def _rest(self) -> list[Piece]:
        rest, self._held = self._held, ""
        return [rest] if rest else []


def call_of(value: Any) -> ToolCall:
    """The call that a JSON object is; raises ValueError when it is none."""
    match value:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
    raise ValueError("a call has a name and an object of arguments")


def read_objects(text: str) -> list[ToolCall]:
    """Calls that stand behind each other, between semicolons."""
    decoder, calls, rest = json.JSONDecoder(), [], text.removeprefix("<|python_tag|>").lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        calls.append(call_of(value))
        rest = rest[end:].lstrip("; \n")
    return calls


def read_list(text: str) -> list[ToolCall]:
    """A JSON list of calls."""
    values = json.loads(text.removeprefix("[TOOL_CALLS]"))
    if not isinstance(values, list) or not values:
        raise ValueError("no list of calls")
    return [call_of(value) for value in values]


def read_python(text: str) -> list[ToolCall]:
    """A Python list of calls with named, literal arguments."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("no list of calls")
    return [_python_call(each) for each in tree.elts]


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    arguments = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    return ToolCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of the text with which the tag begins."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)
