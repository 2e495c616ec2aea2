"""A grammar applies after a model's thinking, also if that ends inside a draft. Before it any text is allowed."""

from collections.abc import Iterator

import pytest

from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind
from tests.unit.specdec.grammar.tagged_text import END, TAGS, allowed, ids

FORMS = {
    "regex": Grammar(GrammarKind.REGEX, "yes|no"),
    "schema": Grammar(GrammarKind.JSON_SCHEMA, '{"enum": ["yes", "no"], "x-guidance": {"whitespace_flexible": false}}'),
    "lark": Grammar(GrammarKind.LARK, 'start: answer\nanswer: "yes" | "no"'),
}
ANSWERS = {"regex": "yes", "schema": '"yes"', "lark": "yes"}


def cases() -> Iterator[tuple[str, str, str, bool]]:
    for name in FORMS:
        for opening, closing in TAGS:
            yield from ((name, opening, closing, special) for special in (True, False))


@pytest.mark.parametrize(("name", "opening", "closing", "special"), list(cases()))
@pytest.mark.parametrize("begun", [True, False])
def test_the_thinking_may_end_inside_a_draft(name: str, opening: str, closing: str, special: bool, begun: bool) -> None:
    tags = [opening, closing] if special else []
    opens = closing if begun else f"{opening}\n{closing}"
    grammar = Grammar(FORMS[name].kind, FORMS[name].text, opens)
    compiler = GrammarCompiler.of_bytes(tags)
    thought = ids(("" if begun else opening) + "maybe no", tags)
    output = [*thought, *ids(f"{closing}\n\n{ANSWERS[name]}", tags)]
    answer = len(output) - len(f"\n\n{ANSWERS[name]}")
    for cut in range(len(output)):
        masks = compiler.compile(grammar).masks(output[:cut], output[cut:])
        assert None not in masks
        for at, mask in enumerate(masks, cut):
            if at < len(output):
                assert allowed(mask, output[at]), "what was written is of the grammar"
            assert allowed(mask, END) == (at == len(output)), "only a whole answer ends"
            inside = len(thought) - len("maybe no") <= at < answer
            if at == len(output) or not 0x80 <= output[at] < 0xC0:  # no letter can start inside a character
                assert allowed(mask, ord("x")) == inside, "only what is thought is free"


def test_what_may_be_thought_may_be_left_out() -> None:
    grammar = Grammar(GrammarKind.REGEX, "yes|no", "<think>\n</think>")
    masks = GrammarCompiler.of_bytes().compile(grammar).masks((), b"yes")
    assert allowed(masks[-1], END)
    assert not allowed(masks[0], ord("x"))


def test_what_stands_before_is_part_of_the_digest() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a")
    assert len({grammar.digest, Grammar(grammar.kind, "a", "b").digest, Grammar(grammar.kind, "a", "c").digest}) == 3


@pytest.mark.parametrize("budget", [None, 40])
def test_any_spelling_of_a_tag_opens_and_closes(budget: int | None) -> None:
    grammar = Grammar(GrammarKind.REGEX, "yes|no", "Here is:\tHere's:\nSo is:\tSo's:", budget)
    for opening in ("Here is:", "Here's:"):
        for closing in ("So is:", "So's:"):
            text = f"{opening} So. {closing}".encode()
            masks = GrammarCompiler.of_bytes().compile(grammar).masks((), text + b"yes")
            assert allowed(masks[-1], END)
            assert [allowed(mask, ord("x")) for mask in masks[len(opening) :]] == [True] * (
                len(text) - len(opening)
            ) + [False] * 4
