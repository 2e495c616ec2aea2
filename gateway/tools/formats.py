"""Formats in which models write tool calls, by name. Add a new one to `FORMATS`."""

import json
import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.grammars.json_lark import in_json
from gateway.grammars.structured import literal
from gateway.tools.harmony import HarmonyParser
from gateway.tools.json_calls import read_objects, read_python
from gateway.tools.parsers import JSON_HEAD, LeadingParser, PlainParser, TaggedParser, ToolParser
from gateway.tools.rules import (
    NUMBER,
    arguments_of,
    nested,
    pattern_of,
    properties_of,
    python_values,
    rule_of,
    text_without,
    values_of,
    written,
)
from gateway.tools.thinking import AUTO, HARMONY, chosen, thinking_of
from gateway.tools.values import Tool, ToolCall
from gateway.tools.xml_calls import FUNCTION, PAIRS, Texts, XmlParser
from specdec.errors import FieldInvalid, UnsupportedParameter
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind


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

    def grammar(self, tools: Sequence[Tool], *, forced: bool, parallel: bool, answer: Grammar | None = None) -> Grammar:
        """Return a grammar of calls of these tools with arguments that match their schemas.

        Args:
            tools: tools that may be called, at least one.
            forced: whether the output must be calls only; otherwise text is allowed too.
            parallel: whether several calls are allowed.
            answer: form of an answer without calls, if they are not forced; None allows any text.

        Raises:
            FieldInvalid: a schema is invalid, or the grammar is too long.
            UnsupportedParameter: calls in this format cannot be constrained by a grammar.
        """
        if answer and not forced and not (self._opening or self.lead):
            return answer  # nothing tells a call from JSON before its name is complete; vLLM has the form alone, too
        rules = [
            *self._starts(forced, parallel, answer),
            "called: " + " | ".join(f"call_{at}" for at in range(len(tools))),
        ]
        room = MAX_GRAMMAR_BYTES - sum(map(len, rules))
        for index, tool in enumerate(tools):
            free = not forced and not tool.strict
            for rule in self._call(index, tool, f"tools[{index}].function.parameters", free):
                rules.append(rule)
                room -= len(rule)
                if room < 0:
                    raise FieldInvalid(f"tools: their grammar has over {MAX_GRAMMAR_BYTES} bytes", "tools")
        return Grammar(GrammarKind.LARK, "\n".join(rules))

    def _starts(self, forced: bool, parallel: bool, answer: Grammar | None) -> Iterator[str]:
        """Yield the rules of an answer; a call without its opening tag is the rule `called`."""
        opening = self._opening
        before, between, after = (written(each, self.special) for each in self.around)
        tag = written(opening, self.special) if opening else '""'
        each_has_tag = not self.around[0]
        if opening and not each_has_tag:
            before = written(self.around[0].removeprefix(opening), self.special)
        yield f"call: {tag if each_has_tag else ''} called"
        calls = f"{before} called{f' ({between} call)*' if parallel else ''} {after}"
        lead = f"{written(self.lead, self.special)} " if self.lead else ""
        if forced:
            yield f"start: {tag} {calls}"
        elif answer:
            yield from (f"start: {tag} {calls} | {lead}answer", f"answer: {rule_of(answer)}")
        elif self.text:
            yield from (f"start: {calls} | {lead}TEXT", f"TEXT: {self.text}")
        elif opening in self.special:
            yield from (f"start: TEXT | TEXT? {tag} {calls}", "TEXT: /(?s:.*)/")
        else:  # a lazy rule ends at the first tag, where a terminal would run on
            yield from (f"start: TEXT | said {calls}", f"TEXT: {text_without(opening)}")
            yield f"said[lazy]: /(?s:.*){pattern_of(opening)}/"

    @property
    def _opening(self) -> str:
        """Tag before the first call, which text may precede; empty if an answer is either text or calls."""
        return self.tags[0] if self.tags and not self.text else ""

    def _head(self, text: str) -> str:
        """Return the beginning of a call without the tag that begins the first one."""
        return written(text.removeprefix(self._opening), self.special)

    @abstractmethod
    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        """Yield the rules of a call of one tool, without its opening tag; `free` allows any arguments."""


@dataclass(frozen=True, kw_only=True)
class JsonFormat(ToolFormat):
    """Format with arguments as a JSON object."""

    call: tuple[str, str, str]
    """Texts before a call's name, between name and arguments, and after the arguments."""
    quoted: bool = False
    """Whether the name is a JSON string."""

    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        name = json.dumps(tool.name) if self.quoted else tool.name
        head, end = self._head(self.call[0] + name + self.call[1]), written(self.call[2], self.special)
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
        (properties, needed, known), arguments = properties_of(tool, place), []
        for at, (key, value) in enumerate(properties.items()):
            values = nested(tool.lark) if tool.lark else self._values(value, known, f"{place}.{key}")
            yield from self._argument(f"{index}_{at}", key, values)
            arguments.append(f"arg_{index}_{at}" + ("" if key in needed else "?"))
        head = self._head(self.call[0] + tool.name + self.call[1])
        yield f"call_{index}: {head} {' '.join(arguments)} {written(self.call[2], self.special)}"

    def _values(self, schema: Any, known: Mapping[str, Any], place: str) -> str:
        return values_of(schema if isinstance(schema, dict) else {}, self.argument[2].strip(), known, place)

    def _argument(self, name: str, key: str, values: str) -> Iterator[str]:
        """Yield the rules of an argument."""
        head, end = written(self.argument[0] + key + self.argument[1], self.special), self.argument[2]
        if values.startswith("%"):
            yield f"arg_{name}: {head} value_{name} {written(end, self.special)}"
            yield f"value_{name}: {values}"
        elif any(tag in end for tag in self.special):  # no text has the token that ends it
            yield f"arg_{name}: {head} VALUE_{name} {written(end, self.special)}"
            yield f"VALUE_{name}: {values}"
        else:  # a lazy rule ends at the first closing tag, where a terminal would run on
            yield f"arg_{name}: {head} value_{name}"
            yield f"value_{name}[lazy]: ENDED_{name}"
            yield f"ENDED_{name}: VALUE_{name} {literal(end)}"
            yield f"VALUE_{name}: {values}"


@dataclass(frozen=True, kw_only=True)
class PythonFormat(ToolFormat):
    """Format of Python calls with named arguments, written in the schema's order."""

    def _call(self, index: int, tool: Tool, place: str, free: bool) -> Iterator[str]:
        properties, needed, known = properties_of(tool, place)
        for name in (*tool.name.split("."), *properties):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UnsupportedParameter(f"{place}: {name!r} is no name in Python, so calls are not forced", place)
        yield f'call_{index}: {literal(f"{tool.name}(")} first_{index}_0 ")"'
        for at, (key, value) in enumerate(properties.items()):
            values = python_values(value if isinstance(value, dict) else {}, known)
            if tool.lark:
                inside = nested(in_json(tool.lark, place.partition(".")[0] + ".format"))
                values = " ".join([literal('"'), inside, literal('"')])
            yield from (f"arg_{index}_{at}: {literal(f'{key}=')} value_{index}_{at}", f"value_{index}_{at}: {values}")
            for rule, before in (("first", '""'), ("more", '", "')):
                left_out = "" if key in needed else f" | {rule}_{index}_{at + 1}"
                yield f"{rule}_{index}_{at}: {before} arg_{index}_{at} more_{index}_{at + 1}{left_out}"
        yield from (f'{rule}_{index}_{len(properties)}: ""' for rule in ("first", "more"))


@dataclass(frozen=True, kw_only=True)
class UnboundFormat(ToolFormat):
    """Format whose calls can be parsed but not forced."""

    def grammar(self, tools: Sequence[Tool], *, forced: bool, parallel: bool, answer: Grammar | None = None) -> Grammar:
        if answer and not forced:
            return answer
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
        marks=("<|channel|>commentary", "functions"),
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
        parser=_tagged("[TOOL_CALLS]", "", r"\s*(?P<name>[A-Za-z0-9_.:/-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*"),
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
    PythonFormat(
        name="pythonic",
        marks=("func_name1(",),
        parser=lambda _: LeadingParser(("[", "<|python_start|>"), read_python, tag="<|python_start|>"),
        tags=("<|python_start|>", "<|python_end|>"),
        around=("[", ", ", "]"),
        text=r"/(?s:[^\[\s].*)?/",
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
