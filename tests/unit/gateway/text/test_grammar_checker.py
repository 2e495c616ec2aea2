"""Untrusted grammars are compiled in another process, which may crash."""

import asyncio
import json

import pytest

from gateway.callers.caller import called_from
from gateway.text import grammar_checker
from gateway.text.grammar_checker import GrammarChecker
from specdec.errors import FieldInvalid, QueueFull
from specdec.sampling.grammar import Grammar, GrammarKind

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
"""A schema that overflows the compiler's stack."""
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


def _endless(number: int) -> Grammar:
    """Return a short grammar that takes far longer than the limit."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "integer", "multipleOf": 1_000_003 + 2 * number}))


async def test_an_honest_grammar_overtakes_those_that_are_late() -> None:
    checker = GrammarChecker()
    try:
        hostile = [asyncio.create_task(checker.check(_endless(each), "json", "mallory")) for each in range(12)]
        await asyncio.sleep(0)
        await checker.check(FINE, "regex", "honest")
        assert not any(task.done() for task in hostile)
    finally:
        for task in hostile:
            task.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        await checker.close()


async def test_what_was_refused_is_remembered_and_a_caller_has_so_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_QUICK_SECONDS", 0.1), ("_SECONDS", 0.2), ("_BUDGET", 0.5)):
        monkeypatch.setattr(grammar_checker, name, seconds)
    checker = GrammarChecker()
    try:
        for each in (0, 1, 2):
            with pytest.raises(FieldInvalid, match="too complex"):
                await checker.check(_endless(each), "json", "mallory")
        with pytest.raises(QueueFull, match="this caller's grammars took"):
            await checker.check(_endless(3), "json", "mallory")
        with pytest.raises(FieldInvalid, match="too complex"):
            await checker.check(_endless(0), "json", "mallory")
        with pytest.raises(FieldInvalid, match="too complex"):
            await checker.check(_endless(3), "json", "another")
    finally:
        await checker.close()


async def test_users_that_an_address_makes_up_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_QUICK_SECONDS", 0.1), ("_SECONDS", 0.2), ("_BUDGET", 0.3), ("_CLIENT_BUDGET", 0.5)):
        monkeypatch.setattr(grammar_checker, name, seconds)
    checker = GrammarChecker()
    try:
        called_from("192.0.2.1")
        for each in (0, 1, 2):
            with pytest.raises(FieldInvalid, match="too complex"):
                await checker.check(_endless(each), "json", f"user:{each}")
        with pytest.raises(QueueFull, match=r"took 0\.5 s"):
            await checker.check(_endless(3), "json", "user:3")
        await checker.check(FINE, "regex", "user:honest")
        called_from("192.0.2.2")
        with pytest.raises(FieldInvalid, match="too complex"):
            await checker.check(_endless(3), "json", "user:3")
    finally:
        await checker.close()


@pytest.mark.parametrize(
    "text", ["\n" * 65_000, "root ::= r0\n" + "\n".join(f'r{i} ::= r{i + 1} | "a"' for i in range(1999))]
)
async def test_a_text_that_takes_long_to_translate_holds_no_event_loop(text: str) -> None:
    checker, turns = GrammarChecker(), 0
    checking = asyncio.create_task(checker.check(Grammar(GrammarKind.LARK, text), "grammar"))
    try:
        while not checking.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(FieldInvalid, match="grammar"):
            await checking
        assert turns > 10
    finally:
        await checker.close()


async def test_a_grammar_of_gbnf_comes_back_translated() -> None:
    checker = GrammarChecker()
    try:
        checked = await checker.check(Grammar(GrammarKind.LARK, 'root ::= "yes" | "no"'), "grammar")
        assert checked is not None
        assert checked.text.split() == ["%llguidance", "{}", "start:", '"yes"', "|", '"no"']
    finally:
        await checker.close()


async def test_a_text_of_neither_notation_is_refused_by_its_field() -> None:
    checker = GrammarChecker()
    try:
        with pytest.raises(FieldInvalid, match="neither Lark nor GBNF") as refused:
            await checker.check(Grammar(GrammarKind.LARK, 'root ::= "a'), "structured_outputs.grammar")
        assert refused.value.param == "structured_outputs.grammar"
    finally:
        await checker.close()
