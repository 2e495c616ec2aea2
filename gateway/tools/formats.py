"""Formats in which models write tool calls, by name. Add a new one to `FORMATS`."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.tools.harmony import HarmonyParser
from gateway.tools.json_calls import read_objects, read_python
from gateway.tools.parsers import JSON_HEAD, LeadingParser, PlainParser, TaggedParser, ToolParser
from gateway.tools.schemas import check_length, simplified
from gateway.tools.structured import WHITESPACE, literal
from gateway.tools.thinking import AUTO, HARMONY, chosen, thinking_of
from gateway.tools.values import Tool, ToolCall
from gateway.tools.xml_calls import FUNCTION, PAIRS, Texts, XmlParser
from specdec.errors import FieldInvalid, UnsupportedParameter
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind, token_name

NUMBER = "{number}"
"""Placeholder for a number of one or two digits in a text."""


@dataclass(frozen=True, kw_only=True)
class ToolFormat(ABC):
    """Format in which a model writes tool calls."""

    name: str
    marks: Sequence[str]
    """Texts that identify the format: a chat template of this format contains all of them."""
    parser: Callable[[Texts], ToolParser]
    """Creates a parser; takes the string parameters of each tool."""
    tags: Sequence[str] = ()
    """Tags that may be special tokens."""
    special: Collection[str] = ()
    """Tags that are special tokens in the model's vocabulary."""
    around: tuple[str, str, str] = ("", "", "")
    """Texts before the first call, between calls, and after the last call."""
    text: str = ""
    """Terminal of a text without calls, if no tag distinguishes it from a call."""
    lead: str = ""
    """Prefix of a text without calls."""
    thinking: str = ""
    """Name of the model's thinking format."""

    def grammar(self, tools: Sequence[Tool], *, forced: bool, parallel: bool) -> Grammar:
        """Return a grammar of calls of these tools with arguments that match their schemas.

        Args:
            tools: tools that may be called, at least one.
            forced: whether the output must be calls only; otherwise text is allowed too.
            parallel: whether several calls are allowed.

        Raises:
            FieldInvalid: a schema is invalid, or the grammar is too long.
            UnsupportedParameter: calls in this format cannot be constrained by a grammar.
        """
        before, between, after = (written(each, self.special) for each in self.around)
        calls = f"{before} call{f' ({between} call)*' if parallel else ''} {after}"
        if forced:
            rules = [f"start: {calls}"]
        elif self.text:
            lead = f"{written(self.lead, self.special)} " if self.lead else ""
            rules = [f"start: {calls} | {lead}TEXT", f"TEXT: {self.text}"]
        else:
            text = text_without(self.tags[0] if self.tags else "", self.special)
            rules = [f"start: TEXT | {calls} | TEXT {calls}", f"TEXT: {text}"]
        rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        room = MAX_GRAMMAR_BYTES
        for index, tool in enumerate(tools):
            free = not forced and not tool.strict
            for rule in self._call(index, tool, f"tools[{index}].function.parameters", free):
                rules.append(rule)
                room -= len(rule)
                if room < 0:
                    raise FieldInvalid(f"tools: their grammar has over {MAX_GRAMMAR_BYTES} bytes", "tools")
        return Grammar(GrammarKind.LARK, "\n".join(rules))

    @abstractmethod
    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        """Yield the rules of a call of one tool; `free` allows any arguments."""


@dataclass(frozen=True, kw_only=True)
class JsonFormat(ToolFormat):
    """Format with arguments as a JSON object."""

    call: tuple[str, str, str]
    """Texts before a call's name, between name and arguments, and after the arguments."""
    quoted: bool = False
    """Whether the name is a JSON string."""

    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        name = json.dumps(tool.name) if self.quoted else tool.name
        head, end = written(self.call[0] + name + self.call[1], self.special), written(self.call[2], self.special)
        yield f"call_{index}: {head} args_{index} {end}"
        yield f"args_{index}: {arguments_of(tool, place, free=free)}"


@dataclass(frozen=True, kw_only=True)
class XmlFormat(ToolFormat):
    """Format with arguments written one by one, in the schema's order."""

    call: tuple[str, str, str]
    """Texts before a call's name, after the name, and after the arguments."""
    argument: tuple[str, str, str]
    """Texts before an argument's name, after the name, and after the value."""

    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        schema = simplified(_checked(tool, place), place)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise FieldInvalid(f"{place}: properties must be an object, and required a list", place)
        known = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        needed, arguments = {name for name in required if isinstance(name, str)}, []
        for at, (key, value) in enumerate(properties.items()):
            head, end = written(self.argument[0] + key + self.argument[1], self.special), self.argument[2]
            yield f"arg_{index}_{at}: {head} value_{index}_{at} {written(end, self.special)}"
            values = values_of(value if isinstance(value, dict) else {}, end.strip(), known)
            is_text = not values.startswith("%json")
            yield f"value_{index}_{at}: {f'VALUE_{index}_{at}' if is_text else values}"
            if is_text:
                yield f"VALUE_{index}_{at}: {values}"
            arguments.append(f"arg_{index}_{at}" + ("" if key in needed else "?"))
        head = written(self.call[0] + tool.name + self.call[1], self.special)
        yield f"call_{index}: {head} {' '.join(arguments)} {written(self.call[2], self.special)}"


@dataclass(frozen=True, kw_only=True)
class UnboundFormat(ToolFormat):
    """Format whose calls can be parsed but not forced."""

    def grammar(self, tools: Sequence[Tool], *, forced: bool, parallel: bool) -> Grammar:
        raise UnsupportedParameter(f"calls in the format {self.name} cannot be forced", "tool_choice")

    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        raise UnsupportedParameter(f"calls in the format {self.name} cannot be forced", "tool_choice")


def _tagged(opening: str, closing: str, head: str, *sections: str) -> Callable[[Texts], ToolParser]:
    return lambda _: TaggedParser(opening, closing, read_objects, head=head, sections=sections)


def _leading(*openings: str, lead: str, between: str, tag: str, closing: str = "") -> Callable[[Texts], ToolParser]:
    def read(text: str) -> list[ToolCall]:
        return read_objects(text.removeprefix(tag).removesuffix(closing).removeprefix("functools"))

    return lambda _: LeadingParser(openings, read, lead, between, tag, closing)


_NAME = r"\s*(?P<name>[A-Za-z0-9_.:/-]+)\s*"
_LIST_CALL = ('{"name": ', ', "arguments": ', "}")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")
_KIMI_HEAD = r"\s*(?:functions\.)?(?P<name>[^<\s]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"
_XML_TAGS = ("<tool_call>", "</tool_call>")

HERMES = JsonFormat(
    name="hermes",
    marks=("<tool_call>",),
    parser=_tagged(*_XML_TAGS, JSON_HEAD),
    tags=_XML_TAGS,
    around=("", "\n", ""),
    call=('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
    quoted=True,
)
_ALL: Sequence[ToolFormat] = (
    JsonFormat(
        name=HARMONY,
        marks=("<|channel|>", "to=functions"),
        parser=lambda _: HarmonyParser(),
        tags=("<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"),
        call=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
        around=("", "<|call|><|start|>assistant", ""),
        text="/(?s:.*)/",
        lead="<|channel|>final<|message|>",
    ),
    JsonFormat(
        name="kimi",
        marks=("<|tool_call_begin|>",),
        parser=_tagged(*_KIMI_CALL, _KIMI_HEAD, *_KIMI),
        tags=(*_KIMI, *_KIMI_CALL, "<|tool_call_argument_begin|>"),
        around=(_KIMI[0], "", _KIMI[1]),
        call=(_KIMI_CALL[0] + "functions.", f":{NUMBER}<|tool_call_argument_begin|>", _KIMI_CALL[1]),
    ),
    JsonFormat(
        name="deepseek_v3",
        marks=(_DEEPSEEK_CALL[0], "```json"),
        parser=_tagged(*_DEEPSEEK_CALL, r"\s*(?:function<｜tool▁sep｜>)?" + _NAME + r"```json\s*", *_DEEPSEEK),
        tags=(*_DEEPSEEK, *_DEEPSEEK_CALL, "<｜tool▁sep｜>"),
        around=(_DEEPSEEK[0], "\n", _DEEPSEEK[1]),
        call=(_DEEPSEEK_CALL[0] + "function<｜tool▁sep｜>", "\n```json\n", "\n```" + _DEEPSEEK_CALL[1]),
    ),
    JsonFormat(
        name="deepseek_v31",
        marks=(_DEEPSEEK_CALL[0],),
        parser=_tagged(*_DEEPSEEK_CALL, _NAME + r"<｜tool▁sep｜>\s*", *_DEEPSEEK),
        tags=(*_DEEPSEEK, *_DEEPSEEK_CALL, "<｜tool▁sep｜>"),
        around=(_DEEPSEEK[0], "", _DEEPSEEK[1]),
        call=(_DEEPSEEK_CALL[0], "<｜tool▁sep｜>", _DEEPSEEK_CALL[1]),
    ),
    XmlFormat(
        name="qwen3_coder",
        marks=("<function=", "<parameter="),
        parser=partial(XmlParser, FUNCTION),
        tags=_XML_TAGS,
        around=("", "\n", ""),
        call=("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),
        argument=("<parameter=", ">\n", "\n</parameter>\n"),
    ),
    XmlFormat(
        name="glm",
        marks=("<arg_key>",),
        parser=partial(XmlParser, PAIRS),
        tags=(*_XML_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        around=("", "\n", ""),
        call=("<tool_call>", "\n", "</tool_call>"),
        argument=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    ),
    JsonFormat(
        name="mistral_v11",
        marks=("[ARGS]",),
        parser=_tagged("[TOOL_CALLS]", "", r"\s*(?P<name>[A-Za-z0-9_.:/-]+)(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*"),
        tags=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        call=("[TOOL_CALLS]", "[ARGS]", ""),
    ),
    JsonFormat(
        name="mistral",
        marks=("[TOOL_CALLS]",),
        parser=_leading("[TOOL_CALLS]", "[{", lead=r"(\[TOOL_CALLS\])?\s*\[", between=", \n]", tag="[TOOL_CALLS]"),
        tags=("[TOOL_CALLS]",),
        around=("[TOOL_CALLS][", ", ", "]"),
        call=_LIST_CALL,
        quoted=True,
    ),
    JsonFormat(
        name="phi4",
        marks=("<|tool|>",),
        parser=_leading(
            *("<|tool_call|>", "functools", "[{"),
            lead=r"(<\|tool_call\|>)?\s*(functools)?\s*\[",
            between=", \n]",
            tag="<|tool_call|>",
            closing="<|/tool_call|>",
        ),
        tags=("<|tool_call|>", "<|/tool_call|>"),
        around=("<|tool_call|>[", ", ", "]<|/tool_call|>"),
        call=_LIST_CALL,
        quoted=True,
    ),
    JsonFormat(
        name="granite",
        marks=("<|tool_call|>",),
        parser=_leading(
            *("<|tool_call|>", "[{"), lead=r"(<\|tool_call\|>)?\s*\[", between=", \n]", tag="<|tool_call|>"
        ),
        tags=("<|tool_call|>",),
        around=("<|tool_call|>[", ", ", "]"),
        call=_LIST_CALL,
        quoted=True,
    ),
    HERMES,
    JsonFormat(
        name="llama",
        marks=("python_tag",),
        parser=lambda _: LeadingParser(
            ("<|python_tag|>", "{"), read_objects, r"(<\|python_tag\|>)?", "; \n", "<|python_tag|>"
        ),
        tags=("<|python_tag|>",),
        around=("", "; ", ""),
        call=('{"name": ', ', "parameters": ', "}"),
        quoted=True,
        text=r"/(?s:[^{\s].*)?/",
    ),
    UnboundFormat(
        name="pythonic",
        marks=("func_name1(",),
        parser=lambda _: LeadingParser(("[", "<|python_start|>"), read_python, tag="<|python_start|>"),
        tags=("<|python_start|>", "<|python_end|>"),
    ),
)
UNKNOWN = UnboundFormat(name="unknown", marks=(), parser=lambda _: PlainParser())
"""Format for chat templates that render tools in an unknown way."""
FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in (*_ALL, UNKNOWN)}
TAGS = frozenset(tag for each in _ALL for tag in each.tags)
"""Tags of all formats that may be special tokens."""
DEFAULT = HERMES


def format_of(template: str | None, special: Collection[str] = (), parser: str = AUTO) -> ToolFormat:
    """Return the format that a chat template uses; the default if it does not support tools.

    Args:
        template: chat template.
        special: names of the vocabulary's special tokens.
        parser: setting of the thinking format, as returned by `check_parser`.
    """
    found = next((each for each in _ALL if all(mark in (template or "") for mark in each.marks)), None)
    if found is None:
        found = UNKNOWN if knows_tools(template or "") else DEFAULT
    thinking = chosen(parser, HARMONY if found.name == HARMONY else thinking_of(template))
    return replace(found, special=tuple(sorted(set(found.tags) & set(special))), thinking=thinking)


def knows_tools(template: str) -> bool:
    """Whether a chat template renders tools."""
    return "tools" in template or "tool_calls" in template


def written(text: str, special: Collection[str]) -> str:
    """Return a text as Lark terminals, with names of special tokens replaced by the tokens."""
    parts = re.split("(" + "|".join(map(re.escape, [NUMBER, *special])) + ")", text)
    return " ".join(_part(part, special) for part in parts if part) or '""'


def _part(text: str, special: Collection[str]) -> str:
    if text == NUMBER:
        return "/[0-9]{1,2}/"
    return token_name(text) if text in special else literal(text)


def text_without(tag: str, special: Collection[str]) -> str:
    """Return the terminal of texts without the tag. A special token never occurs in text."""
    return "/(?s:.*)/" if not tag or tag in special else f"/(?s:.*)/ & ~/(?s:.*{pattern_of(tag)}.*)/"


def pattern_of(text: str) -> str:
    """Escape a text for a regular expression in Lark's notation."""
    return re.sub(r"([][(){}.*+?^$|/\\])", r"\\\1", text)


def arguments_of(tool: Tool, place: str, *, free: bool) -> str:
    """Return the grammar of a tool's JSON arguments; `free` allows any object."""
    schema: dict[str, Any] = {"type": "object"}
    if not free:
        schema = simplified(schema | _checked(tool, place), place)
        check_length(schema, place)
    schema["x-guidance"] = {"whitespace_pattern": WHITESPACE} | schema.get("x-guidance", {})
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def _checked(tool: Tool, place: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments; raises FieldInvalid if it is too long for a grammar."""
    if len(tool.parameters) > MAX_GRAMMAR_BYTES:
        raise FieldInvalid(f"{place} may have {MAX_GRAMMAR_BYTES} bytes, it has {len(tool.parameters)}", place)
    return tool.schema


def values_of(schema: Mapping[str, Any], end: str, definitions: Mapping[str, Any]) -> str:
    """Return the grammar of a parameter's values; strings are written raw, up to the text `end`."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(literal(choice) for choice in choices)
    if schema.get("type") == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return f"/(?s:.{{{least},{most}}})/ & ~/(?s:.*{pattern_of(end)}.*)/"
    guided = {**definitions, **schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"%json {json.dumps(guided, ensure_ascii=False)}"
