"""Complete outputs of a schema's grammar are valid for the schema. Schemas without constraints are accepted."""

import json
from typing import Any

import jsonschema
import pytest

from gateway.grammars.patterns import names_of, without_lookahead
from gateway.grammars.schemas import simplified
from gateway.grammars.structured import choice, json_schema
from specdec.errors import FieldInvalid
from tests.unit.gateway.grammars import schema_corpus
from tests.unit.gateway.grammars.walks import compiler, walk

WALKS = 30


@pytest.mark.parametrize("name", schema_corpus.SCHEMAS)
def test_what_ends_is_of_the_schema(name: str) -> None:
    schema = schema_corpus.SCHEMAS[name]
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    grammar = json_schema(schema, "schema")
    texts = [text for seed in range(WALKS) if (text := walk(grammar, seed)) is not None]
    for text in texts:
        validator.validate(json.loads(text))
    assert texts


NOTHING: dict[str, Any] = {
    "uniqueItems": {"type": "array", "uniqueItems": False},
    "format": {"type": "string", "format": "password"},
    "format of a number": {"type": "integer", "format": "int64"},
    "propertyNames": {"type": "object", "propertyNames": {"type": "string"}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": True},
    "dependentRequired": {"type": "object", "dependentRequired": {}},
    "not": {"not": False},
    "contains": {"type": "array", "contains": {"const": 1}, "minContains": 0},
    "maxContains": {"type": "array", "maxContains": 3},
    "if": {"if": {"type": "object"}, "then": {}, "else": True},
    "then": {"then": {"const": 1}},
    "empty": {"type": "object", "patternProperties": {}, "minProperties": 0},
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_says_nothing_is_accepted(name: str) -> None:
    for schema in (NOTHING[name], {"type": "object", "properties": {"a": {"anyOf": [NOTHING[name]]}}}):
        assert any(compiler.compile(json_schema(schema, "schema")).masks(())[0] or b"")


def test_what_is_a_name_or_a_value_is_left_alone() -> None:
    schema = {
        "properties": {"uniqueItems": {"const": {"uniqueItems": False}}, "format": {"enum": [{"format": "x"}]}},
        "required": ["uniqueItems"],
        "default": {"not": False},
    }
    assert simplified(schema, "schema") == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"not": {"const": 1}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "string", "format": "json-pointer"},
        {"if": {"const": 1}, "then": {"const": 2}},
    ],
    ids=str,
)
def test_what_constrains_and_is_not_known_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(FieldInvalid):
        compiler.compile(json_schema(schema, "schema"))


def test_names_that_could_come_twice_are_not_counted() -> None:
    schema = {"properties": {"a": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2}}}
    with pytest.raises(FieldInvalid) as refused:
        json_schema(schema, "schema")
    assert refused.value.param == "schema.properties.a.minProperties"


@pytest.mark.parametrize("code", [0, 1, 0x1F, 0x7F, 0x80, 0x9F, 0x2028, 0xFFFE, 0x1F600])
def test_any_character_can_be_chosen(code: int) -> None:
    text = f"a{chr(code)}b"
    assert walk(choice([text], "choice"), 0) == text


def nested_names(levels: int) -> Any:
    """A schema whose names, when listed, are 64 times as many with each level."""
    value: Any = {"type": "string"}
    for _ in range(levels):
        value = {"patternProperties": {"^[a-zA-Z0-9_.]$": value}}
    return value


@pytest.mark.parametrize(
    "schema",
    [
        nested_names(8),
        {"patternProperties": {f"^{index}$": {} for index in range(65)}},
        {"properties": {"k" * 30_000: {"anyOf": [{}] * 60_000}}},
        {"patternProperties": {"^[a-z]$": {"description": "d" * 3000}}},
    ],
    ids=["names of names", "patterns", "values", "copies of a text"],
)
def test_a_schema_that_grows_too_long_is_refused_before_it_is_written(schema: Any) -> None:
    with pytest.raises(FieldInvalid) as refused:
        json_schema(schema, "schema")
    assert refused.value.param.startswith("schema")


def test_a_pattern_of_huge_counts_is_left_to_the_compiler() -> None:
    huge = r"^(?=[\d.]{1,999999999}0*$)\d{0,999999999}\.\d{0,999999999}0*$"
    assert without_lookahead(huge)[0].startswith("^")
    assert names_of("^" + "[ab]" * 10_000 + "$") is None


def test_a_pattern_of_many_look_aheads_is_rewritten_in_part() -> None:
    first, *others = without_lookahead("^" + "(?=a)" * 5000 + "b")
    assert others == ["^(?:a)"] * 64
    assert first.startswith("^(?=a)")
    assert without_lookahead("^(?=a)(?=b)c") == ["^c", "^(?:b)", "^(?:a)"]


@pytest.mark.parametrize(
    "bound", [float("inf"), float("-inf"), float("nan"), 10**400], ids=["inf", "-inf", "nan", "huge"]
)
def test_bounds_beyond_float_arithmetic_stay(bound: float) -> None:
    assert simplified({"exclusiveMaximum": bound, "minimum": 0.5}, "schema")["minimum"] == 0.5
    assert simplified({"exclusiveMinimum": bound, "maximum": 0.5}, "schema")["maximum"] == 0.5
