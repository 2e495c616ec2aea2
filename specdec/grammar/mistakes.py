"""The mistake in a grammar that cannot be compiled: why, and in which part of a JSON Schema."""

import json
from collections.abc import Iterator
from typing import Any

from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties")
"""Keywords of JSON Schema that hold lists of schemas, schemas by name, and one schema."""


def mistake(compiler: GrammarCompiler, grammar: Grammar) -> tuple[str, str]:
    """What is wrong with a grammar, and where in its JSON Schema; both empty when nothing is."""
    error = _error(compiler, grammar)
    if not error or grammar.kind != GrammarKind.JSON_SCHEMA:
        return error, ""
    try:
        schema = json.loads(grammar.text)
    except ValueError:
        return error, ""
    return _innermost(compiler, schema, error)


def _innermost(compiler: GrammarCompiler, schema: Any, error: str) -> tuple[str, str]:
    """The error of the innermost schema that cannot be compiled by itself, and the way to it."""
    path, root = "", schema
    while True:
        for step, part in _parts(schema):
            found = _error(compiler, Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_alone(part, root))))
            if found:
                path, schema, error = path + step, part, found
                break
        else:
            return error, path


def _alone(part: Any, root: dict[str, Any]) -> Any:
    """A part as a schema by itself, with the definitions that it may refer to."""
    known = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return known | part if isinstance(part, dict) and part is not root else part


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, each with the step that leads to it."""
    if not isinstance(schema, dict):
        return
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from ((f".{name}[{index}]", part) for index, part in enumerate(schema[name]))
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            yield from ((f".{name}.{key}", part) for key, part in schema[name].items())
    yield from ((f".{name}", schema[name]) for name in _ONE if isinstance(schema.get(name), dict))


def _error(compiler: GrammarCompiler, grammar: Grammar) -> str:
    """Why a grammar cannot be compiled, or has no first token; empty when it can."""
    try:
        (first,) = compiler.compile(grammar).masks(())
    except FieldInvalid as error:
        return error.message
    return "" if first is not None and any(first) else "it allows no text, or is too complex"
