"""Compiles the grammars of strangers in a process of its own: one that is nested too deep ends it, and nothing else.

It reads a line of JSON for each grammar and answers with one: `error`, empty when the grammar is fine, and `path`, the
place in a JSON Schema that the error is of.
"""

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.rules.grammar import Grammar, GrammarKind

_STACK = 4 * 2**20
"""Bytes of stack: half of what the threads of the services have, so that what passes here passes there."""
_MEMORY = 2 * 2**30
"""Bytes of address space."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties")
"""Keywords of JSON Schema that hold lists of schemas, schemas by name, and one schema."""


def main() -> None:
    """Answer until the input ends."""
    for limit, most in ((resource.RLIMIT_STACK, _STACK), (resource.RLIMIT_AS, _MEMORY)):
        resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    compiler = GrammarCompiler.of_bytes()
    for line in sys.stdin:
        error, path = mistake(compiler, Grammar(**json.loads(line)))
        sys.stdout.write(json.dumps({"error": error, "path": path}) + "\n")
        sys.stdout.flush()


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


if __name__ == "__main__":
    main()
