"""A grammar's state is a pure function of the tokens: drafts, rejections and retries leave no trace in it."""

import json
import random

import pytest

from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

END = 256
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
    "additionalProperties": False,
}


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler.of_bytes()


def ids(mask: bytes | None) -> set[int]:
    assert mask is not None
    return {8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


def test_each_position_of_a_draft_has_a_mask(compiler: GrammarCompiler) -> None:
    masks = compiler.compile(regex("ab*c")).masks((), b"abc")
    assert [ids(mask) for mask in masks] == [{97}, {98, 99}, {98, 99}, {END}]


def test_the_end_is_allowed_only_where_a_sentence_is_complete(compiler: GrammarCompiler) -> None:
    state = compiler.compile(regex("a|ab"))
    assert [ids(mask) for mask in state.masks((), b"ab")] == [{97}, {98, END}, {END}]


def test_after_the_end_and_after_what_is_not_allowed_nothing_is_masked(compiler: GrammarCompiler) -> None:
    state = compiler.compile(regex("ab*c"))
    assert [mask is None for mask in state.masks(b"a", (99, END, 98))] == [False, False, True, True]
    assert [mask is None for mask in state.masks(b"a", (120, 98))] == [False, True, True]


def test_an_output_that_is_not_of_the_grammar_allows_nothing(compiler: GrammarCompiler) -> None:
    state = compiler.compile(regex("ab*c"))
    assert [ids(mask) for mask in state.masks(b"x", b"a")] == [set(), set()]
    assert ids(state.masks(())[0]) == {97}, "and it leaves no trace"


@pytest.mark.parametrize(
    "grammar", [regex("(ab|ac*)*d"), Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))], ids=str
)
def test_a_state_that_was_used_is_as_good_as_a_new_one(compiler: GrammarCompiler, grammar: Grammar) -> None:
    dice, state, output = random.Random(1), compiler.compile(grammar), []
    for _ in range(30):
        allowed = ids(state.masks(output)[0]) - {END}
        if not allowed:
            break
        token = dice.choice(sorted(allowed))
        drafts = [token, *(dice.randrange(97, 101) for _ in range(3))]
        found = state.masks(output, drafts)
        assert found == compiler.compile(grammar).masks(output, drafts)
        output.append(token)
        if dice.random() < 0.2:
            output = output[: dice.randrange(len(output))]  # another try of the turn begins earlier


def test_two_sessions_of_a_grammar_share_nothing_but_what_was_compiled(compiler: GrammarCompiler) -> None:
    one, other = compiler.compile(regex("ab")), compiler.compile(regex("ab"))
    one.masks(b"a")
    assert ids(other.masks(())[0]) == {97}


def test_the_text_that_must_follow_is_known(compiler: GrammarCompiler) -> None:
    state = compiler.compile(Grammar(GrammarKind.LARK, 'start: "yes, " ("sir" | "madam")'))
    assert bytes(state.forced((), 9)) == b"yes, "
    assert bytes(state.forced(b"yes, m", 3)) == b"ada"
    assert state.forced(b"no", 3) == state.forced((), 0) == ()


@pytest.mark.parametrize(
    "grammar",
    [regex("(a"), Grammar(GrammarKind.LARK, "start: nothing"), Grammar(GrammarKind.JSON_SCHEMA, '{"type": "objec"}')],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(FieldInvalid):
        compiler.compile(grammar)


def test_a_grammar_has_a_size_and_a_digest() -> None:
    for text in ("", "a" * (MAX_GRAMMAR_BYTES + 1)):
        with pytest.raises(FieldInvalid):
            regex(text)
    assert regex("a").digest != Grammar(GrammarKind.LARK, "a").digest


def test_a_tokenizer_that_the_library_cannot_read_has_no_grammars() -> None:
    assert GrammarCompiler.of_tokenizer(None, 8, (0,)) is None
    assert GrammarCompiler.of_tokenizer("{}", 8, (0,)) is None


def test_half_a_text_that_nothing_completes_does_not_end(compiler: GrammarCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"const": 1}},
        "patternProperties": {"^score$": {"const": 1}},
        "additionalProperties": False,
        "required": ["score"],
    }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema | {"x-guidance": {"whitespace_flexible": False}}))
    assert [ids(mask) for mask in compiler.compile(grammar).masks(b'{"score":1', b",")] == [{*b",}"}, set()]


def test_a_grammar_whose_masks_take_too_long_has_none(compiler: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.LARK, "start: s\ns: s s s s | T | \nT: /[ -~]/")
    state, output = compiler.compile(grammar), b""
    while not state.too_complex:
        assert len(output) < 200, "the grammar is ambiguous without an end"
        state.masks(output)
        output += b"a"
    assert ids(*state.masks(output)) == set()
    assert not state.forced(output, 4)


def test_forms_of_use_are_within_the_limits(compiler: GrammarCompiler) -> None:
    choices = [{"type": "object", "properties": {f"k{each}": {"const": each}}} for each in range(200)]
    for schema in ({"anyOf": choices}, {"enum": [f"value number {each}" for each in range(2500)]}):
        state = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
        assert ids(*state.masks(b""))
        assert not state.too_complex


def test_masks_that_are_known_are_not_computed_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = compiler.compile(regex("ab*c"))
    known = state.masks(b"a", b"bb")
    monkeypatch.setattr(state, "_mask", lambda: pytest.fail("computed again"))
    assert state.masks(b"a", b"bb") == known
    assert state.masks(b"a", b"b") == known[:2]
    monkeypatch.undo()
    assert state.masks(b"ab", b"b") == compiler.compile(regex("ab*c")).masks(b"ab", b"b")


def test_after_a_draft_at_which_masks_take_too_long_no_token_is_drawn(compiler: GrammarCompiler) -> None:
    state = compiler.compile(Grammar(GrammarKind.LARK, "start: s\ns: s s s s | T | \nT: /[ -~]/"))
    masks = state.masks(b"", b"a" * 500)
    assert state.too_complex
    known = [mask for mask in masks if mask is not None and any(mask)]
    assert len(masks) == 501
    assert 0 < len(known) < 500
    assert [mask and ids(mask) for mask in masks[len(known) :]] == [set()] * (501 - len(known))
