"""Rules of grammars in Lark's notation: texts with special tokens, arguments of calls, and values between tags."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.grammars.json_lark import in_json
from gateway.grammars.patterns import matching, regex
from gateway.grammars.schemas import check_length, simplified
from gateway.grammars.structured import WHITESPACE, literal
from gateway.tools.custom import INPUT
from gateway.tools.values import Tool
from specdec.errors import FieldInvalid
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind, token_name

NUMBER = "{number}"
"""Placeholder for a number of one or two digits in a text."""


def written(text: str, special: Collection[str]) -> str:
    """Return a text as Lark terminals, with names of special tokens replaced by the tokens."""
    parts = re.split("(" + "|".join(map(re.escape, [NUMBER, *special])) + ")", text)
    return " ".join(_part(part, special) for part in parts if part) or '""'


def _part(text: str, special: Collection[str]) -> str:
    if text == NUMBER:
        return "/[0-9]{1,2}/"
    return token_name(text) if text in special else literal(text)


def text_without(tag: str) -> str:
    """Return the terminal of texts without the tag."""
    return f"/(?s:.*)/ & ~/(?s:.*{pattern_of(tag)}.*)/"


def pattern_of(text: str) -> str:
    """Escape a text for a regular expression in Lark's notation."""
    return re.sub(r"([][(){}.*+?^$|/\\])", r"\\\1", text)


def nested(lark: str) -> str:
    """Return a grammar with names of its own as a part of a rule."""
    return f"%lark {{\n{lark}\n}}"


def rule_of(grammar: Grammar) -> str:
    """Return a grammar as a part of a rule."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return f"%json {grammar.text}"
        case GrammarKind.REGEX:
            return nested(f"start: {regex(grammar.text)}")
    return nested(grammar.text)


def arguments_of(tool: Tool, place: str, *, free: bool) -> str:
    """Return the grammar of a tool's JSON arguments; `free` allows any object."""
    if tool.lark and not free:
        given = nested(in_json(tool.lark, f"{place.partition('.')[0]}.format"))
        return " ".join([literal('{"' + INPUT + '": "'), given, literal('"}')])
    schema: dict[str, Any] = {"type": "object"}
    if not free:
        schema = simplified(schema | checked(tool, place), place)
        check_length(schema, place)
    schema["x-guidance"] = {"whitespace_pattern": WHITESPACE} | schema.get("x-guidance", {})
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def checked(tool: Tool, place: str) -> dict[str, Any]:
    """Return the schema of a tool's arguments; raises FieldInvalid if it is too long for a grammar."""
    if len(tool.parameters) > MAX_GRAMMAR_BYTES:
        raise FieldInvalid(f"{place} may have {MAX_GRAMMAR_BYTES} bytes, it has {len(tool.parameters)}", place)
    return tool.schema


def properties_of(tool: Tool, place: str) -> tuple[dict[str, Any], set[str], dict[str, Any]]:
    """Return the schemas of a tool's parameters by name, the names of the required ones, and the schema's definitions.

    Raises:
        FieldInvalid: the schema is invalid or too long.
    """
    schema = simplified(checked(tool, place), place)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise FieldInvalid(f"{place}: properties must be an object, and required a list", place)
    known = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return properties, {name for name in required if isinstance(name, str)}, known


def python_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the grammar of a parameter's values in Python; values inside lists and objects are in JSON."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if schema.get("type") in ("boolean", "null") and not choices:
        choices = [True, False] if schema["type"] == "boolean" else [None]
    if isinstance(choices, list) and choices:
        return " | ".join(literal(repr(choice)) for choice in choices)
    return _json_values(schema, definitions)


def values_of(schema: Mapping[str, Any], end: str, definitions: Mapping[str, Any], place: str) -> str:
    """Return the grammar of a parameter's values; strings are written raw, up to the text `end`.

    Raises:
        FieldInvalid: the schema's pattern cannot be a part of the grammar.
    """
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(literal(choice) for choice in choices)
    if schema.get("type") == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        patterns = [schema, *schema.get("allOf", ())]
        found = [matching(each["pattern"], place) for each in patterns if isinstance(each, dict) and "pattern" in each]
        bounds = "".join(f" & {regex(each)}" for each in found)
        return f"/(?s:.{{{least},{most}}})/{bounds} & ~/(?s:.*{pattern_of(end)}.*)/"
    return _json_values(schema, definitions)


def _json_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    guided = {**definitions, **schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"%json {json.dumps(guided, ensure_ascii=False)}"
