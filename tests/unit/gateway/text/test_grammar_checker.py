"""Grammars of strangers are compiled in another process, which may die of them."""

import asyncio
import json

import pytest

from gateway.text import grammar_checker
from gateway.text.grammar_checker import GrammarChecker
from specdec.errors import FieldInvalid
from specdec.rules.grammar import Grammar, GrammarKind

FINE = Grammar(GrammarKind.REGEX, "a+")
DEPTH = 880
DEEP = Grammar(
    GrammarKind.JSON_SCHEMA,
    json.dumps(
        {
            "$ref": "#/$defs/a0",
            "$defs": {
                **{f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, {"type": "null"}]} for at in range(DEPTH)},
                f"a{DEPTH}": {"type": "integer"},
            },
        }
    ),
)
"""A schema of which the compiler's stack runs over."""
SLOW = Grammar(GrammarKind.REGEX, "a?" * 30_000)


async def test_a_grammar_is_checked_and_one_that_ends_the_process_is_refused() -> None:
    checker = GrammarChecker()
    try:
        await checker.check(FINE, "regex")
        with pytest.raises(FieldInvalid, match=r"json\.properties\.a: Invalid type") as refused:
            await checker.check(Grammar(GrammarKind.JSON_SCHEMA, '{"properties": {"a": {"type": "objec"}}}'), "json")
        assert refused.value.param == "json.properties.a"
        with pytest.raises(FieldInvalid, match="json is too complex"):
            await checker.check(DEEP, "json")
        await checker.check(Grammar(GrammarKind.REGEX, "b"), "regex")
    finally:
        await checker.close()


async def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_checker, "_SECONDS", 1.0)
    checker = GrammarChecker()
    try:
        with pytest.raises(FieldInvalid, match="regex is too complex"):
            await checker.check(SLOW, "regex")
    finally:
        await checker.close()


async def test_a_caller_that_leaves_takes_no_answer_of_another() -> None:
    checker = GrammarChecker()
    try:
        leaving = asyncio.create_task(checker.check(FINE, "regex"))
        await asyncio.sleep(0.01)
        leaving.cancel()
        with pytest.raises(FieldInvalid):
            await checker.check(Grammar(GrammarKind.REGEX, "(a"), "regex")
        await checker.check(FINE, "regex")
    finally:
        await checker.close()
