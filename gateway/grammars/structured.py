"""Converts requested output forms (schema, regex, choice, grammar) to the grammar sent between services."""

import json
from typing import Any

from gateway.bounds import check_nesting
from gateway.grammars.schemas import check_length, simplified, with_named_only
from specdec.errors import FieldInvalid
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

WHITESPACE = r"( |\n[ \t]{0,24})?"
"""Default white space pattern; bounded, because a weak model could fill its token limit with white space."""


def json_schema(
    schema: Any, param: str, *, compact: bool = False, closed: bool = False, whitespace: str | None = None
) -> Grammar:
    """Return the grammar of a JSON Schema, given as object or text. Its own `x-guidance` overrides the arguments.

    Args:
        schema: JSON Schema.
        param: field of the schema, for error messages.
        compact: whether to forbid white space between JSON tokens.
        closed: whether objects may have only the properties that the schema names, unless it says otherwise.
        whitespace: pattern of white space between JSON tokens; None allows a space or an indented line.

    Raises:
        FieldInvalid: the schema is invalid or too long.
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
    check_length(schema, param)
    check_nesting(schema, param)
    schema = with_named_only(schema) if closed else schema
    options: dict[str, Any] = {"whitespace_pattern": whitespace or WHITESPACE}
    if compact:
        options = {"whitespace_flexible": False}
    schema = simplified(schema, param) | {"x-guidance": options | schema.get("x-guidance", {})}
    check_length(schema, param)
    return _grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def regex(pattern: str, param: str) -> Grammar:
    """Return the grammar of texts that fully match a regular expression; raises FieldInvalid."""
    return _grammar(GrammarKind.REGEX, pattern, param)


def choice(texts: list[str], param: str) -> Grammar:
    """Return the grammar of a choice between texts; raises FieldInvalid."""
    if not texts:
        raise FieldInvalid(f"{param} must have a text to choose", param)
    if (size := len(texts) + sum(map(len, texts))) > MAX_GRAMMAR_BYTES:  # before any of them is written
        raise _too_long(size, param)
    literals = (literal(text) for text in dict.fromkeys(texts))
    return _grammar(GrammarKind.LARK, f"start: {' | '.join(literals)}", param)


def literal(text: str) -> str:
    """Return a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def context_free(text: str, param: str) -> Grammar:
    """Return a grammar in Lark or GBNF notation, which `GrammarChecker` validates; raises FieldInvalid."""
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
