"""A budget limits a model's thinking: the closing tag is forced at its end, also inside a draft."""

import itertools
from collections.abc import Sequence

import pytest

from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.wire.params import grammar_from_pb, grammar_to_pb
from tests.unit.specdec.grammar.tagged_text import END, TAGS, allowed, ids

BUDGET = 6
HARMONY = ("<|channel|>analysis<|message|>", "<|over|><|start|>assistant<|channel|>final<|message|>")
NAMES = ["<|channel|>", "<|message|>", "<|over|>", "<|start|>"]


def tags_of(opening: str, closing: str, special: bool) -> list[str]:
    if not special:
        return []
    return NAMES if opening == HARMONY[0] else [opening, closing]


def masks_of(grammar: Grammar, tags: Sequence[str], output: Sequence[int], cut: int) -> list[bytes | None]:
    return GrammarCompiler.of_bytes(tags).compile(grammar).masks(output[:cut], output[cut:])


@pytest.mark.parametrize(("opening", "closing"), [*TAGS, HARMONY])
@pytest.mark.parametrize(("special", "begun"), list(itertools.product([True, False], [True, False])))
@pytest.mark.parametrize("form", ["", "yes|no"])
def test_after_the_budget_the_tag_is_forced(opening: str, closing: str, special: bool, begun: bool, form: str) -> None:
    tags = tags_of(opening, closing, special)
    opens = closing if begun else f"{opening}\n{closing}"
    kind, text = (GrammarKind.REGEX, form) if form else (GrammarKind.ANY, "*")
    head, end = ids("" if begun else opening, tags), ids(closing, tags)
    output = [*head, *b"so, so", *end, *b"yes"]
    spent = len(head) + BUDGET
    for cut in range(len(output) + 1):
        masks = masks_of(Grammar(kind, text, opens, BUDGET), tags, output, cut)
        for at, mask in enumerate(masks, cut):
            if spent <= at < spent + len(end):
                assert [token for token in range(END + 1 + len(tags)) if allowed(mask, token)] == [output[at]]
            elif at < len(output):
                assert mask is None or allowed(mask, output[at])
            if len(head) <= at < spent:
                assert mask is None or allowed(mask, ord("x"))
    state = GrammarCompiler.of_bytes(tags).compile(Grammar(kind, text, opens, BUDGET))
    assert state.forced(output[:spent], 100)[: len(end)] == tuple(end)


def test_thinking_that_ends_by_itself_is_left_alone() -> None:
    output = b"ok</think>and so on and on"
    masks = masks_of(Grammar(GrammarKind.ANY, "*", "</think>", len(b"ok</think>")), (), output, 0)
    assert masks == [None] * (len(output) + 1)


def test_a_tag_that_has_begun_is_completed() -> None:
    state = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.ANY, "*", "</think>", 5))
    assert state.forced(b"ok</t", 100) == tuple(b"hink>")
    assert state.forced(b"o<</t", 100) == tuple(b"hink>")
    assert state.forced(b"</ok<", 100) == tuple(b"/think>")


def test_an_answer_without_thinking_is_left_alone() -> None:
    masks = masks_of(Grammar(GrammarKind.ANY, "*", "<think>\n</think>", 0), (), b"\n <this is none", 3)
    assert set(masks) == {None}


@pytest.mark.parametrize("begun", [True, False])
def test_a_budget_of_none_closes_at_once(begun: bool) -> None:
    output = ids("" if begun else "\n<think>", [])
    state = GrammarCompiler.of_bytes().compile(
        Grammar(GrammarKind.ANY, "*", "</think>" if begun else "<think>\n</think>", 0)
    )
    assert state.forced(output, 100) == tuple(b"</think>")


@pytest.mark.parametrize("character", ["é", "漢", "😀"])
@pytest.mark.parametrize("form", ["", "yes"])
def test_a_character_is_completed_before_the_tag(character: str, form: str) -> None:
    kind, text = (GrammarKind.REGEX, form) if form else (GrammarKind.ANY, "*")
    grammar, thought = Grammar(kind, text, "</think>", BUDGET), b"12345" + character.encode()
    (*inside, last) = masks_of(grammar, (), thought, 0)[BUDGET:]
    assert not any(mask is not None and allowed(mask, ord("<")) for mask in inside)
    assert allowed(last, ord("<"))
    assert not allowed(last, ord("x"))


def test_bytes_that_are_no_character_do_not_put_it_off() -> None:
    state = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.ANY, "*", "</think>", 2))
    thought = b"a" + b"\xf0" * 4
    assert [bool(state.forced(thought[:count], 1)) for count in range(6)] == [False] * 5 + [True]


def test_a_rejected_draft_leaves_no_trace() -> None:
    state = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.ANY, "*", "</think>", 3))
    fresh = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.ANY, "*", "</think>", 3))
    state.masks(b"ab", b"</think>x")
    assert state.masks(b"ab", b"cd") == fresh.masks(b"ab", b"cd")


def test_it_travels_with_the_grammar() -> None:
    for budget in (None, 0, 5):
        grammar = Grammar(GrammarKind.REGEX, "a", "</think>", budget)
        assert grammar_from_pb(grammar_to_pb(grammar)) == grammar  # type: ignore[arg-type]
    assert len({Grammar(GrammarKind.REGEX, "a", "b", budget).digest for budget in (None, 0, 1)}) == 3


@pytest.mark.parametrize(("behind", "budget"), [("", 1), ("b", -1), ("b", None)])
def test_what_makes_no_sense_is_refused(behind: str, budget: int | None) -> None:
    with pytest.raises(FieldInvalid):
        Grammar(GrammarKind.ANY, "*", behind, budget)
