"""Reads calls of tools from the text of a model, as it comes; what is no call is text, and nothing is lost.

What a parser has returned is a function of the text so far, however that was cut, so that a reader who comes back gets
what is missing and no more.
"""

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from gateway.tools.json_calls import JsonObject, call_of, head_of, read_objects
from gateway.tools.values import CallDelta, ToolCall

Piece = str | CallDelta
Reader = Callable[[str], list[ToolCall]]
"""Reads a whole text that consists of calls; raises ValueError when it does not."""

_NO_CALLS = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)


class ToolParser(ABC):
    """The text of one answer."""

    def __init__(self, begin: Callable[[], list[Piece] | None]) -> None:
        """`begin` reads the beginning of what is held, or waits for more and returns None; it may set the next step."""
        self._held = ""
        self._step = begin
        self._calls = 0
        self._arguments = JsonObject()

    def feed(self, text: str) -> list[Piece]:
        """What is certain now that more text has come."""
        self._held += text
        pieces: list[Piece] = []
        while self._held and (found := self._step()) is not None:
            pieces += found
        return pieces

    @abstractmethod
    def end(self) -> list[Piece]:
        """What is left when no more comes."""

    @abstractmethod
    def _end_call(self) -> None:
        """Go on behind arguments."""

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held

    def _call(self, call: ToolCall) -> CallDelta:
        self._calls += 1
        return CallDelta(self._calls - 1, name=call.name, arguments=call.arguments)

    def _begin_call(self, text: str) -> list[Piece] | None:
        """The name of the call with which the text, the end of what is held, begins; None where none begins yet."""
        head = head_of(text)
        if head is None:
            return None
        name, self._held = head[0], text[head[1] :]
        self._arguments, self._step = JsonObject(), self._read_arguments
        return [self._call(ToolCall(name, ""))]

    def _read_arguments(self) -> list[Piece]:
        taken = self._arguments.take(self._held)
        more, self._held = self._held[:taken], self._held[taken:]
        if self._arguments.ended:
            self._end_call()
        return [CallDelta(self._calls - 1, arguments=more)] if more else []


class TaggedParser(ToolParser):
    """Calls between two tags, each a JSON object; text may stand around them, less the white space beside them."""

    def __init__(self, opening: str, closing: str) -> None:
        super().__init__(self._read_text)
        self._opening, self._closing = opening, closing
        self._behind_call = False

    def end(self) -> list[Piece]:
        rest = self._take()
        if self._step == self._read_text:
            return self._text(rest)
        if self._step == self._read_call:
            return self._whole(rest, self._opening + rest)
        rest = rest.strip().removeprefix("}").lstrip()
        return [] if self._closing.startswith(rest) else [rest]

    def _end_call(self) -> None:
        self._step = self._read_closing

    def _read_text(self) -> list[Piece] | None:
        text, opening, rest = self._held.partition(self._opening)
        if opening:
            self._held, self._step = rest, self._read_call
            return self._text(text.rstrip())
        certain = text[: len(text) - overlap(text, self._opening)].rstrip()
        self._held = text[len(certain) :]
        return self._text(certain) if certain else None

    def _read_call(self) -> list[Piece] | None:
        begun = self._begin_call(self._held)
        if begun is not None:
            return begun
        inner, closing, behind = self._held.partition(self._closing)
        if not closing:
            return None
        self._held, self._step = behind, self._read_text
        return self._whole(inner, self._opening + inner + closing)

    def _read_closing(self) -> list[Piece] | None:
        _, closing, behind = self._held.partition(self._closing)
        if not closing:
            return None
        self._held, self._step, self._behind_call = behind, self._read_text, True
        return []

    def _text(self, text: str) -> list[Piece]:
        if self._behind_call:
            text = text.lstrip()
        self._behind_call = self._behind_call and not text
        return [text] if text else []

    def _whole(self, inner: str, text: str) -> list[Piece]:
        """The call that stands between two tags, or the text that it is."""
        try:
            call = call_of(json.loads(inner))
        except (ValueError, RecursionError):
            return [text]
        self._behind_call = True
        return [self._call(call)]


class LeadingParser(ToolParser):
    """Calls that an answer begins with, or it has none: then it is all text."""

    def __init__(self, openings: Sequence[str], read: Reader, lead: str = "", between: str = "") -> None:
        """Read calls whole, or as they come where they are JSON.

        Args:
            openings: the texts that calls may begin with.
            read: reads them all.
            lead: a regular expression of what may stand before the first JSON object.
            between: the characters that may stand behind each; empty where calls are no JSON.
        """
        super().__init__(self._read_beginning)
        self._openings, self._between = openings, between
        self._read = read
        self._lead = re.compile(lead)

    def end(self) -> list[Piece]:
        rest, read = self._take(), self._read
        if self._step == self._read_next:
            rest, read = rest.strip(self._between), read_objects
        elif self._step != self._read_beginning:
            return []
        try:
            return [self._call(call) for call in read(rest.strip())] if rest else []
        except _NO_CALLS:
            return [rest]

    def _end_call(self) -> None:
        self._arguments, self._step = JsonObject(depth=1), self._read_rest

    def _read_beginning(self) -> list[Piece] | None:
        begun = self._held.lstrip()
        if not any(begun.startswith(each) or each.startswith(begun) for each in self._openings):
            self._step = self._read_plain
            return []
        lead = self._lead.match(begun)
        return self._begin_call(begun[lead.end() :]) if lead and self._between else None

    def _read_rest(self) -> list[Piece]:
        """What stands in a call behind its arguments, which is nothing of use."""
        self._held = self._held[self._arguments.take(self._held) :]
        if self._arguments.ended:
            self._step = self._read_next
        return []

    def _read_next(self) -> list[Piece] | None:
        rest = self._held.lstrip(self._between)
        if rest and not rest.startswith("{"):
            self._held, self._step = rest, self._read_plain
            return []
        return self._begin_call(rest)

    def _read_plain(self) -> list[Piece]:
        return [self._take()]


def read_python(text: str) -> list[ToolCall]:
    """A Python list of calls with named, literal arguments; raises ValueError where there is something else."""
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
    """Length of the longest end of the text with which the tag begins, less than the whole tag."""
    at = text.find(tag[:1], max(0, len(text) - len(tag) + 1))
    while at >= 0 and not tag.startswith(text[at:]):
        at = text.find(tag[0], at + 1)
    return len(text) - at if at >= 0 else 0
