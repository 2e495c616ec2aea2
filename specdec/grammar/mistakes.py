"""Locates the error in a grammar that cannot be compiled: the reason, and the failing part of a JSON Schema."""

import json
from collections.abc import Iterator
from typing import Any

from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties")
"""JSON Schema keywords whose values are lists of schemas, maps of schemas by name, and single schemas."""


def mistake(compiler: GrammarCompiler, grammar: Grammar) -> tuple[str, str]:
    """Return the error in a grammar and its path in the JSON Schema. Both are empty if the grammar is valid."""
    error = _error(compiler, grammar)
    if not error or grammar.kind != GrammarKind.JSON_SCHEMA:
        return error, ""
    try:
        schema = json.loads(grammar.text)
    except ValueError:
        return error, ""
    return _innermost(compiler, schema, error)


def _innermost(compiler: GrammarCompiler, schema: Any, error: str) -> tuple[str, str]:
    """Return the error and path of the innermost subschema that cannot be compiled on its own."""
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
    """Return a part as a standalone schema, including the definitions that it may reference."""
    known = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return known | part if isinstance(part, dict) and part is not root else part


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a schema, each with its path step."""
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
    """Return the reason that a grammar cannot be compiled or has no first token; empty if it is valid."""
    try:
        (first,) = compiler.compile(grammar).masks(())
    except FieldInvalid as error:
        return error.message
    return "" if first is not None and any(first) else "it allows no text, or is too complex"
