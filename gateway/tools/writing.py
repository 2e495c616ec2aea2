"""Parts of grammars of calls, in Lark's notation: tags, which may be special tokens, names, texts and arguments."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.tools.schemas import simplified
from gateway.tools.structured import WHITESPACE, literal
from gateway.tools.values import Tool
from specdec.sampling.grammar import token_name

NUMBER = "{number}"
"""Stands for a number of one or two digits in a text."""


def written(text: str, special: Collection[str]) -> str:
    """A text; where it has the name of one of the special tokens, the token."""
    parts = re.split("(" + "|".join(map(re.escape, [NUMBER, *special])) + ")", text)
    return " ".join(_part(part, special) for part in parts if part) or '""'


def _part(text: str, special: Collection[str]) -> str:
    if text == NUMBER:
        return "/[0-9]{1,2}/"
    return token_name(text) if text in special else literal(text)


def text_without(tag: str, special: Collection[str]) -> str:
    """The terminal of texts that do not have the tag, which is no text where it is a special token."""
    return "/(?s:.*)/" if not tag or tag in special else f"/(?s:.*)/ & ~/(?s:.*{pattern_of(tag)}.*)/"


def pattern_of(text: str) -> str:
    """A text as a regular expression in Lark's notation."""
    return re.sub(r"([][(){}.*+?^$|/\\])", r"\\\1", text)


def arguments_of(tool: Tool, place: str, *, free: bool) -> str:
    """The JSON of a tool's arguments; `free` allows those that are not of its schema."""
    schema: dict[str, Any] = {"type": "object"}
    if not free:
        schema = simplified(schema | tool.schema, place)
    schema["x-guidance"] = {"whitespace_pattern": WHITESPACE} | schema.get("x-guidance", {})
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def values_of(schema: Mapping[str, Any], end: str, definitions: Mapping[str, Any]) -> str:
    """The values of a parameter that are written as text where they are texts, up to the text `end`."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(literal(choice) for choice in choices)
    if schema.get("type") == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return f"/(?s:.{{{least},{most}}})/ & ~/(?s:.*{pattern_of(end)}.*)/"
    guided = {**definitions, **schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"%json {json.dumps(guided, ensure_ascii=False)}"
