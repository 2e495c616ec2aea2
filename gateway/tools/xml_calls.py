"""Parses tool calls whose arguments are text between tags, as Qwen3-Coder and GLM write them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.parsers import Piece, TaggedParser
from gateway.tools.values import Tool, ToolCall

Texts = Mapping[str, Sequence[str]]
"""Names of string parameters by tool name. Their values stay text even if they look like JSON."""


@dataclass(frozen=True, slots=True)
class Form:
    """Notation of the parts of a call."""

    head: re.Pattern[str]
    """Matches the text before the arguments, with the `name`."""
    argument: re.Pattern[str]
    """Matches the `key` and the `value` of an argument."""
    opening: str
    """Text before a value."""
    closing: str
    last: str
    """Text at the end of a complete call."""
    end: re.Pattern[str]
    """Matches the text after the arguments."""
    bare: str = ""
    """Text that begins a call without its opening tag, which some models leave out; empty if none does."""


FUNCTION = Form(
    re.compile(r"\s*<function=(?P<name>[^>\n]+)>\s*"),
    re.compile(
        r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?"
        r"(?:</parameter>(?=\s*(?:<parameter=|</?function|\Z))|\Z)\s*",
        re.DOTALL,
    ),
    *("<parameter=", "</parameter>", "</function>"),
    re.compile(r"\s*(?:</function>\s*|\Z)"),
    "<function=",
)
PAIRS = Form(
    re.compile(r"\s*(?P<name>[^<\s]+)\s*"),
    re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL),
    *("<arg_value>", "</arg_value>", "</tool_call>"),
    re.compile(r"\s*\Z"),
)


def texts_of(tools: Sequence[Tool]) -> dict[str, list[str]]:
    """Return the names of the tools' string parameters, for a parser."""
    return {tool.name: names for tool in tools if (names := _texts(tool.schema.get("properties")))}


def _texts(properties: Any) -> list[str]:
    known = properties if isinstance(properties, dict) else {}
    return [name for name, schema in known.items() if isinstance(schema, dict) and _is_text(schema)]


def _is_text(schema: Mapping[str, Any]) -> bool:
    if "type" in schema:
        return bool(schema["type"] == "string")
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return bool(values) and all(isinstance(value, str) for value in values)


class XmlParser(TaggedParser):
    """Parses calls between `<tool_call>` and `</tool_call>`; returns each call as a whole."""

    def __init__(self, form: Form, texts: Texts) -> None:
        """Args: form: notation of calls; texts: names of string parameters."""
        super().__init__("<tool_call>", "</tool_call>", self._calls_of)
        self._form, self._texts = form, texts
        self._tags = (*self._tags, form.bare) if form.bare else self._tags

    def _read_text(self) -> list[Piece] | None:
        bare = self._held.find(self._form.bare) if self._form.bare else -1
        if bare < 0 or 0 <= self._held.find(self._opening) < bare:
            return super()._read_text()
        text, self._held = self._held[:bare], self._held[bare:]
        self._begin_search(self._read_bare)
        said = self._text(text.rstrip())
        self._gap += text[len(text.rstrip()) :]
        return said

    def _read_bare(self) -> list[Piece] | None:
        """Read a call without its opening tag, of which the closing tag may follow."""
        inner = self._before(self._form.last)
        if inner is None:
            return None
        inner += self._form.last
        rest = self._held[len(inner) :].lstrip()
        if len(rest) < len(self._closing) and self._closing.startswith(rest):
            return None
        self._held, self._step = self._held[len(inner) :], self._read_text
        if rest.startswith(self._closing):
            self._held = rest.removeprefix(self._closing)
        return self._found(inner, inner)

    def _in_value(self, at: int) -> bool:
        """Whether the held text before that place ends inside an argument."""
        return self._held.rfind(self._form.opening, 0, at) > self._held.rfind(self._form.closing, 0, at)

    def _ended(self, rest: str) -> list[Piece]:
        """Parse the rest; a call that lacks only its closing tag counts as a call."""
        if self._step not in (self._read_call, self._read_bare):
            return super()._ended(rest)
        text = self._opening + rest if self._step == self._read_call else rest
        inner, closed, after = rest.rpartition(self._form.last)
        if not closed or not self._closing.startswith(after.strip()):
            return self._text(text)
        return self._found(inner + (closed if closed != self._closing else ""), text)

    def _calls_of(self, text: str) -> list[ToolCall]:
        calls = list[ToolCall]()
        while text.strip() or not calls:
            begun = self._form.head.match(text)
            if begun is None:
                raise ValueError("no call")
            name, text, given = begun["name"].strip(), text[begun.end() :], dict[str, Any]()
            while argument := self._form.argument.match(text):
                key = argument["key"].strip()
                given[key] = self._value(name, key, argument["value"])
                text = text[argument.end() :]
            end = self._form.end.match(text)
            if end is None:
                raise ValueError("no argument")
            text = text[end.end() :]
            calls.append(ToolCall(name, json.dumps(given, ensure_ascii=False)))
        return calls

    def _value(self, name: str, key: str, text: str) -> Any:
        """Return the value of an argument: JSON if it is valid and the parameter is not a string, otherwise text."""
        if key in self._texts.get(name, ()):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
