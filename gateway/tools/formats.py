"""The ways in which models write calls, by name; a new one is added to `FORMATS`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.tools.json_calls import read_list, read_objects
from gateway.tools.parsers import LeadingParser, TaggedParser, ToolParser, read_python
from gateway.tools.schemas import simplified
from gateway.tools.structured import WHITESPACE, literal
from gateway.tools.values import Tool
from specdec.errors import UnsupportedParameter
from specdec.rules.grammar import Grammar, GrammarKind


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls."""

    name: str
    mark: str
    """What the chat templates of its models say, by which it is known."""
    parser: Callable[[], ToolParser]
    call: tuple[str, str, str] | None
    """What stands before a call's name, between name and arguments, and behind them; None when they are no JSON."""
    around: tuple[str, str, str] = ("", "", "")
    """What stands before the first call, between two, and behind the last."""
    text: str = ""
    """The terminal, in Lark's notation, of a text without a call."""
    mixed: str = "{calls} | TEXT"
    """How calls and text may follow each other, in Lark's notation."""

    def grammar(self, tools: Sequence[Tool], *, forced: bool, parallel: bool) -> Grammar:
        """Calls of these tools whose arguments are of their schemas.

        Args:
            tools: those that may be called, at least one.
            forced: whether there must be a call, and nothing else; otherwise there may be text.
            parallel: whether there may be several calls.

        Raises:
            UnsupportedParameter: a call in this format has no JSON.
        """
        if self.call is None:
            raise UnsupportedParameter(f"calls in the format {self.name} cannot be forced", "tool_choice")
        before, between, behind = self.around
        more = f" ({literal(between)} call)*" if parallel else ""
        calls = f"{literal(before)} call{more} {literal(behind)}"
        rules = [f"start: {calls}" if forced else f"start: {self.mixed.format(calls=calls)}\nTEXT: {self.text}"]
        rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        for index, tool in enumerate(tools):
            schema = simplified({"type": "object"} | tool.schema, f"tools[{index}].function.parameters")
            schema["x-guidance"] = {"whitespace_pattern": WHITESPACE} | schema.get("x-guidance", {})
            head = self.call[0] + json.dumps(tool.name) + self.call[1]
            rules.append(f"call_{index}: {literal(head)} args_{index} {literal(self.call[2])}")
            rules.append(f"args_{index}: %json {json.dumps(schema, ensure_ascii=False)}")
        return Grammar(GrammarKind.LARK, "\n".join(rules))


_HERMES = ("<tool_call>", "</tool_call>")
_ALL = (
    ToolFormat(
        "hermes",
        "<tool_call>",
        partial(TaggedParser, *_HERMES),
        ('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
        ("", "\n", ""),
        "/(?s:.*)/ & ~/(?s:.*<tool_call>.*)/",
        "TEXT | {calls} | TEXT {calls}",
    ),
    ToolFormat(
        "llama",
        "python_tag",
        partial(LeadingParser, ("<|python_tag|>", "{"), read_objects, r"(<\|python_tag\|>)?", "; \n"),
        ('{"name": ', ', "parameters": ', "}"),
        ("", "; ", ""),
        r"/(?s:[^{\s].*)?/",
    ),
    ToolFormat(
        "mistral",
        "[TOOL_CALLS]",
        partial(LeadingParser, ("[TOOL_CALLS]", "[{"), read_list, r"(\[TOOL_CALLS\])?\s*\[", ", \n]"),
        ('{"name": ', ', "arguments": ', "}"),
        ("[", ", ", "]"),
        r"/(?s:[^\[\s].*)?/",
    ),
    ToolFormat("pythonic", "func_name1(", partial(LeadingParser, ("[",), read_python), None),
)
FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in _ALL}
DEFAULT = FORMATS["hermes"]


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template speaks of; the default where it speaks of none."""
    return next((each for each in _ALL if each.mark in (template or "")), DEFAULT)
