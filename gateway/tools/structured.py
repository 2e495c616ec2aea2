"""The forms that an output may be asked to have, as the grammar that carries each of them between the services."""

import json
from typing import Any

from gateway.tools.json_bounds import check_nesting
from gateway.tools.schemas import simplified
from specdec.errors import FieldInvalid
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

WHITESPACE = r"( |\n[ \t]{0,24})?"
"""White space without an end would let a weak model write nothing else until the token limit."""


def json_schema(schema: Any, param: str, *, compact: bool = False, whitespace: str | None = None) -> Grammar:
    """JSON values of a schema, which may be given as text; its own `x-guidance` goes before the other arguments.

    Args:
        compact: whether there is no white space between the tokens of the JSON.
        whitespace: a regular expression of the white space between two tokens; None is a space or an indented line.

    Raises:
        FieldInvalid: it is no schema, or too long.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_GRAMMAR_BYTES:  # before it is read
            raise _too_long(len(schema), param)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise FieldInvalid(f"{param} is not JSON: {error}", param) from error
    if not isinstance(schema, dict) or not isinstance(schema.get("x-guidance", {}), dict):
        raise FieldInvalid(f"{param} must be a JSON Schema, an object", param)
    check_nesting(schema, param)
    options: dict[str, Any] = {"whitespace_pattern": whitespace or WHITESPACE}
    if compact:
        options = {"whitespace_flexible": False}
    schema = simplified(schema, param) | {"x-guidance": options | schema.get("x-guidance", {})}
    return _grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def regex(pattern: str, param: str) -> Grammar:
    """Texts that a regular expression matches as a whole; raises FieldInvalid."""
    return _grammar(GrammarKind.REGEX, pattern, param)


def choice(texts: list[str], param: str) -> Grammar:
    """One of several texts; raises FieldInvalid."""
    if not texts:
        raise FieldInvalid(f"{param} must have a text to choose", param)
    if (size := len(texts) + sum(map(len, texts))) > MAX_GRAMMAR_BYTES:  # before any of them is written
        raise _too_long(size, param)
    literals = (literal(text) for text in dict.fromkeys(texts))
    return _grammar(GrammarKind.LARK, f"start: {' | '.join(literals)}", param)


def literal(text: str) -> str:
    """A text in the notation of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def context_free(text: str, param: str) -> Grammar:
    """Sentences of a grammar in the notation of Lark or GBNF, which `GrammarChecker` reads; raises FieldInvalid."""
    return _grammar(GrammarKind.LARK, text, param)


def _grammar(kind: GrammarKind, text: str, param: str) -> Grammar:
    size = len(text) if len(text) > MAX_GRAMMAR_BYTES else len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise _too_long(size, param)
    if not text:
        raise FieldInvalid(f"{param} must not be empty", param)
    return Grammar(kind, text)


def _too_long(size: int, param: str) -> FieldInvalid:
    return FieldInvalid(f"{param} may have {MAX_GRAMMAR_BYTES} bytes, it has {size}", param)
