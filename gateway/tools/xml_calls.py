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
    """Matches the `name`, and the arguments as `rest`."""
    argument: re.Pattern[str]
    """Matches the `key` and the `value` of an argument."""
    opening: str
    """Text before a value."""
    closing: str
    last: str
    """Text at the end of a complete call."""


FUNCTION = Form(
    re.compile(r"\s*<function=(?P<name>[^>\n]+)>(?P<rest>.*?)(?:</function>)?\s*", re.DOTALL),
    re.compile(r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?(?:</parameter>|\Z)\s*", re.DOTALL),
    *("<parameter=", "</parameter>", "</function>"),
)
PAIRS = Form(
    re.compile(r"\s*(?P<name>[^<\s]+)\s*(?P<rest>.*)", re.DOTALL),
    re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL),
    *("<arg_value>", "</arg_value>", "</tool_call>"),
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

    def _inner(self) -> str | None:
        """Return the text before the first closing tag outside an argument; None if the tag is yet to come."""
        at = self._held.find(self._closing)
        while at >= 0:
            inner = self._held[:at]
            if inner.rfind(self._form.opening) <= inner.rfind(self._form.closing):
                return inner
            at = self._held.find(self._closing, at + 1)
        return None

    def _ended(self, rest: str) -> list[Piece]:
        """Parse the rest; a call that lacks only its closing tag counts as a call."""
        if self._step == self._read_call:
            inner, closed, after = rest.rpartition(self._form.last)
            if not closed or after.strip() not in ("", self._closing):
                return [self._opening + rest]
            return self._whole(
                self._calls_of, inner + (closed if closed != self._closing else ""), self._opening + rest
            )
        return super()._ended(rest)

    def _calls_of(self, text: str) -> list[ToolCall]:
        begun = self._form.head.fullmatch(text)
        if begun is None:
            raise ValueError("no call")
        name, rest, given = begun["name"].strip(), begun["rest"], dict[str, Any]()
        while rest.strip():
            argument = self._form.argument.match(rest)
            if argument is None:
                raise ValueError("no argument")
            key = argument["key"].strip()
            given[key] = self._value(name, key, argument["value"])
            rest = rest[argument.end() :]
        return [ToolCall(name, json.dumps(given, ensure_ascii=False))]

    def _value(self, name: str, key: str, text: str) -> Any:
        """Return the value of an argument: JSON if it is valid and the parameter is not a string, otherwise text."""
        if key in self._texts.get(name, ()):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
