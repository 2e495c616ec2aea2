"""Errors in a grammar, with their positions."""

import json
from typing import Any

import pytest

from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.mistakes import mistake
from specdec.sampling.grammar import Grammar, GrammarKind

COMPILER = GrammarCompiler.of_bytes()
WRONG = {"type": "objec"}


def place(schema: Any) -> str:
    return mistake(COMPILER, Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))[1]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (WRONG, ""),
        ({"properties": {"a": {"items": WRONG}}}, ".properties.a.items"),
        ({"anyOf": [{"type": "string"}, {"additionalProperties": WRONG}]}, ".anyOf[1].additionalProperties"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"prefixItems": [WRONG]}}}, ".$defs.x.prefixItems[0]"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, ".properties.a"),
        ({"properties": {"ok": {"$ref": "#/$defs/x"}, "bad": {"not": {}}}, "$defs": {"x": {}}}, ".properties.bad"),
    ],
)
def test_the_innermost_schema_at_fault_is_named(schema: Any, path: str) -> None:
    assert place(schema) == path


def test_a_grammar_that_compiles_has_no_mistake() -> None:
    assert mistake(COMPILER, Grammar(GrammarKind.JSON_SCHEMA, "{}")) == ("", "")
    assert mistake(COMPILER, Grammar(GrammarKind.REGEX, "a")) == ("", "")


def test_other_kinds_have_the_place_in_the_message() -> None:
    error, path = mistake(COMPILER, Grammar(GrammarKind.LARK, "start: a\na: b"))
    assert "2(4)" in error
    assert path == ""
