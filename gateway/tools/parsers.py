"""Incremental parsers of tool calls in a model's text. Anything that is not a call stays text; nothing is lost.

The joined output of a parser depends only on the text so far, not on how it was split. A reader that resumes therefore
receives exactly the missing part.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from gateway.tools.json_calls import JsonObject, JsonStrings, call_of
from gateway.tools.values import CallDelta, Thought, ToolCall

Piece = str | CallDelta | Thought
Reader = Callable[[str], list[ToolCall]]
"""Parses a whole text that consists of calls; raises ValueError if it does not."""

NO_CALLS = (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError)


class ToolParser(ABC):
    """Base class: parses the text of one answer."""

    def __init__(self, begin: Callable[[], list[Piece] | None]) -> None:
        """Args: begin: first step. A step consumes held text, or returns None to wait; it may set the next step."""
        self.cut = False
        """Whether a call is truncated or incomplete."""
        self._held = ""
        self._step = begin
        self._calls = 0
        self._arguments = JsonObject()
        self._in_object = False
        """Whether the arguments of the current call are a member of a JSON object."""
        self._members = JsonObject()
        self._scanned = 0
        """Number of held characters that were scanned for the end of the current object, or of the current tags."""

    def feed(self, text: str) -> list[Piece]:
        """Add text; return the pieces that are now final."""
        self._held += text
        pieces: list[Piece] = []
        while self._held and (found := self._step()) is not None:
            pieces += found
        return pieces

    def end(self) -> list[Piece]:
        """End the text; return the remaining pieces."""
        self.cut = self.cut or self._step == self._read_arguments
        rest = self._ended(self._take())
        return [piece for piece in rest if piece]

    @abstractmethod
    def _ended(self, rest: str) -> list[Piece]:
        """Parse the rest of the text at its end."""

    @abstractmethod
    def _end_call(self) -> None:
        """Set the step after a call's arguments."""

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held

    def _call(self, call: ToolCall) -> CallDelta:
        self._calls += 1
        return CallDelta(self._calls - 1, name=call.name, arguments=call.arguments)

    def _whole(self, read: Reader, inner: str, text: str) -> list[Piece]:
        """Parse `inner` as calls; return `text` unchanged if it is not calls."""
        try:
            return [self._call(call) for call in read(inner)] or [text]
        except NO_CALLS:
            return [text]

    def _begin_call(self, name: str, rest: str, *, in_object: bool = False) -> list[Piece]:
        """Begin a call; `rest` starts with its arguments, a JSON object, which may be a member of another."""
        self._held, self._in_object = rest, in_object
        self._arguments, self._step = JsonObject(), self._read_arguments
        return [self._call(ToolCall(name, ""))]

    def _read_arguments(self) -> list[Piece]:
        taken = self._arguments.take(self._held)
        more, self._held = self._held[:taken], self._held[taken:]
        if self._arguments.ended:
            self.cut = self.cut or not self._arguments.whole
            self._end_call()
            if self._in_object and self._arguments.whole:
                self._members, self._scanned, self._step = JsonObject(depth=1), 0, self._read_members
        return [CallDelta(self._calls - 1, arguments=more)] if more else []

    def _read_members(self) -> list[Piece] | None:
        """Read what follows the arguments in a call's object, such as an id, up to its closing brace."""
        if not _MEMBERS.match(self._held):
            self._end_call()
            return []
        self._scanned += self._members.take(self._held[self._scanned :])
        if not self._members.ended:
            return None
        self._end_call()
        if self._members.whole and _are_idle(self._held[: self._scanned]):
            self._held = "}" + self._held[self._scanned :]
        return []


class TaggedParser(ToolParser):
    """Parses calls between tags. Text may surround them; white space is dropped where only calls follow or precede."""

    def __init__(self, opening: str, closing: str, read: Reader, *, head: str = "(?!)", sections: Sequence[str] = ()):
        """Create a parser.

        Args:
            opening: tag before a call.
            closing: tag after a call; empty if there is none.
            read: parses the whole text between tags, if it does not begin with a head and arguments.
            head: pattern of the text between the opening tag and JSON arguments, with the name as the group `name`.
            sections: tags around all calls, which are dropped.
        """
        super().__init__(self._read_text)
        self._opening, self._closing, self._read = opening, closing, read
        self._head = re.compile(rf"{head}(?=\{{)", re.DOTALL)
        self._in_json = head == JSON_HEAD
        self._named = re.compile(head, re.DOTALL)
        self._tags = (opening, *sections)
        self._behind_call = False
        self._strings = JsonStrings()
        self._from = 0
        """Number of held characters in which no closing tag of the current call begins."""
        self._gap = ""
        """White space next to calls, shown if text follows it."""
        self._spoke = False
        """Whether there was text."""

    def _ended(self, rest: str) -> list[Piece]:
        if self._step == self._read_text:
            return [] if self._behind_call and not rest.strip() else self._text(rest)
        if self._step == self._read_call:
            return self._found(rest, self._opening + rest) if rest.strip() else self._text(self._opening + rest)
        if self._step == self._read_arguments:
            return []
        rest = self._left(rest)
        return [] if self._closing.startswith(rest) else self._text(rest)

    def _end_call(self) -> None:
        self._step = self._read_closing

    def _read_text(self) -> list[Piece] | None:
        found = min(((at, tag) for tag in self._tags if (at := self._held.find(tag)) >= 0), default=None)
        if found is not None:
            text, self._held = self._held[: found[0]], self._held[found[0] + len(found[1]) :]
            said = self._text(text.rstrip())
            self._gap += text[len(text.rstrip()) :]
            if found[1] == self._opening:
                self._begin_search(self._read_call)
            else:
                self._behind_call = True
            return said
        certain = self._held[: len(self._held) - max(overlap(self._held, tag) for tag in self._tags)].rstrip()
        self._held = self._held[len(certain) :]
        return self._text(certain) if certain else None

    def _read_call(self) -> list[Piece] | None:
        if begun := self._head.match(self._held):
            return self._begin_call(_name(begun["name"]), self._held[begun.end() :], in_object=self._in_json)
        inner = self._inner()
        if inner is None:
            return None
        behind, self._step = self._held[len(inner) + len(self._closing) :], self._read_text
        found = self._found(inner, "")
        if found:
            self._held = behind
            return found
        again = inner.rfind(self._opening)  # the tag of a call may stand in the text before it
        if again < 0:
            self._held = behind
            return self._text(self._opening + inner + self._closing)
        self._held = inner[again:] + self._closing + behind
        return self._text(self._opening + inner[:again])

    def _found(self, inner: str, text: str) -> list[Piece]:
        """Parse the whole text between two tags; return `text` as such if it is not calls."""
        pieces = self._whole(self._read_inner, inner, "")
        if pieces == [""]:
            return self._text(text)
        self._behind_call = True
        return pieces

    def _read_inner(self, text: str) -> list[ToolCall]:
        """Parse the whole text between two tags, whose call may have no arguments, or such that are encoded twice."""
        begun = None if self._in_json else self._named.match(text)
        if begun is None:
            return self._read(text)
        rest = text[begun.end() :].strip().removesuffix("```").strip()
        return [call_of({"name": _name(begun["name"]), "arguments": json.loads(rest) if rest else None})]

    def _inner(self) -> str | None:
        """Return the text before the first closing tag outside a JSON string; None if the tag is yet to come."""
        return self._before(self._closing) if self._closing else None

    def _begin_search(self, step: Callable[[], list[Piece] | None]) -> None:
        """Set a step that searches the held text for a closing tag."""
        self._strings, self._scanned, self._from, self._step = JsonStrings(), 0, 0, step

    def _before(self, tag: str) -> str | None:
        """Return the text before the first such tag that is none of a value; None if the tag is yet to come."""
        while (at := self._held.find(tag, self._from)) >= 0:
            if not self._in_value(at):
                return self._held[:at]
            self._from = at + 1
        self._from = max(self._from, len(self._held) - len(tag) + 1)
        return None

    def _in_value(self, at: int) -> bool:
        """Whether the held text before that place ends inside a JSON string."""
        self._strings.take(self._held[self._scanned : at])
        self._scanned = at
        return self._strings.inside

    def _read_closing(self) -> list[Piece] | None:
        if not self._closing:
            self._step, self._behind_call = self._read_text, True
            return []
        text, closing, behind = self._held.partition(self._closing)
        unclosed, opening, _ = text.partition(self._opening)
        if opening and self._left(unclosed)[:1] != "{":  # the next call begins, and this one has no closing tag
            self._held, self._step, self._behind_call = self._held[len(unclosed) :], self._read_text, True
            return self._text(self._left(unclosed).rstrip())
        rest = self._left(text)
        if rest.startswith("{") and (begun := self._head.match(rest)):
            rest = rest[begun.end() :] + closing + behind
            return self._begin_call(_name(begun["name"]), rest, in_object=self._in_json)
        if not closing:
            return None
        self._held, self._step, self._behind_call = behind, self._read_text, True
        return self._found(rest, rest) if rest else []

    def _left(self, text: str) -> str:
        """Return the text after arguments, without the call's own closing characters."""
        return text.strip().removeprefix("}").removeprefix("```").lstrip(" \t\r\n,;")

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        shown, self._gap = self._gap + text, ""
        if self._calls and not self._spoke:
            shown = shown.lstrip()
        self._behind_call, self._spoke = False, True
        return [shown] if shown else []


class LeadingParser(ToolParser):
    """Parses calls in a list or between semicolons, at the start of an answer or after a tag."""

    def __init__(
        self, openings: Sequence[str], read: Reader, lead: str = "", between: str = "", tag: str = "", closing: str = ""
    ) -> None:
        """Create a parser. JSON calls are parsed incrementally, other calls as a whole.

        Args:
            openings: texts that calls may begin with.
            read: parses a whole text of calls.
            lead: pattern of the text before the first JSON object.
            between: characters allowed after each call; empty if calls are not JSON.
            tag: opening that starts calls anywhere; empty if there is none.
            closing: text allowed after the last call.
        """
        super().__init__(self._read_beginning)
        self._openings, self._between, self._tag, self._closing = openings, between, tag, closing
        self._read = read
        self._lead = re.compile(lead)
        self._head = re.compile(JSON_HEAD + r"(?=\{)", re.DOTALL)

    def _ended(self, rest: str) -> list[Piece]:
        if self._step == self._read_next:
            rest = rest.strip(self._between).removesuffix(self._closing)
        elif self._step != self._read_beginning:
            return [rest]
        return self._whole(self._read, rest.strip(), rest) if rest else []

    def _end_call(self) -> None:
        self._step = self._read_rest

    def _read_beginning(self) -> list[Piece] | None:
        begun = self._held.lstrip()
        if not any(begun.startswith(each) or each.startswith(begun) for each in self._openings):
            self._step = self._read_plain
            return []
        lead = self._lead.match(begun)
        return self._begun(begun[lead.end() :]) if lead and self._between else None

    def _begun(self, text: str) -> list[Piece] | None:
        begun = self._head.match(text)
        return self._begin_call(_name(begun["name"]), text[begun.end() :], in_object=True) if begun else None

    def _read_rest(self) -> list[Piece] | None:
        """Parse the text of a call after its arguments."""
        rest = self._held.lstrip()
        if not rest:
            return None
        self._held, self._step = rest.removeprefix("}"), self._read_next if rest.startswith("}") else self._read_plain
        return []

    def _read_next(self) -> list[Piece] | None:
        rest = self._held.lstrip(self._between)
        if rest and not rest.startswith("{"):
            if len(rest) < len(self._closing) and self._closing.startswith(rest):
                return None
            self._held, self._step = rest.removeprefix(self._closing), self._read_plain
            return []
        return self._begun(rest)

    def _read_plain(self) -> list[Piece] | None:
        if not self._tag:
            return [self._take()]
        text, tag, rest = self._held.partition(self._tag)
        if tag:
            self._held, self._step = tag + rest, self._read_beginning
            return [text] if text else []
        certain = text[: len(text) - overlap(text, self._tag)]
        self._held = text[len(certain) :]
        return [certain] if certain else None


class PlainParser(ToolParser):
    """Returns all text unchanged, for models whose call format is unknown."""

    def __init__(self) -> None:
        super().__init__(self._read_plain)

    def _read_plain(self) -> list[Piece]:
        return [self._take()]

    def _ended(self, rest: str) -> list[Piece]:
        return [rest]

    def _end_call(self) -> None:
        """There are no calls."""


def _are_idle(members: str) -> bool:
    """Whether further members of a call's object, up to its closing brace, say nothing that is not in the call."""
    try:
        return set(json.loads("{" + members.lstrip().removeprefix(","))) <= _IDLE
    except (ValueError, RecursionError):
        return False


_IDLE = {"id", "index", "type"}
_MEMBERS = re.compile(r"\s*(?:,\s*(?:\"|\Z)|\Z)")
"""Matches the beginning of further members of a JSON object."""
JSON_HEAD = r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.){1,256}")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
"""Pattern of the text before the arguments of a JSON call whose name comes first."""


def _name(text: str) -> str:
    """Parse a name written as a JSON string or plainly."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip('"')
    return text.strip()


def overlap(text: str, tag: str) -> int:
    """Return the length of the longest suffix of the text that is a proper prefix of the tag."""
    at = text.find(tag[:1], max(0, len(text) - len(tag) + 1))
    while at >= 0 and not tag.startswith(text[at:]):
        at = text.find(tag[0], at + 1)
    return len(text) - at if at >= 0 else 0
