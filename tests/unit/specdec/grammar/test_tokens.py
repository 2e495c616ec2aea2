"""Mask and automaton agree for real kinds of tokenizers, also if a grammar's text equals an added token."""

import json
import random
import re
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind
from tests.support import tokenizers_apart

NAMES = ("<tool_call>", "</tool_call>", "<|tool|>", "[TOOL]", "<think>", "<filename>")
TEXTS = (
    *NAMES,
    "say <tool_call> now",
    "a[TOOL]b",
    "<think>hm</think>",
    " x <|tool|>",
    "<|end|>",
    "</s>",
    "<plain>no token</plain>",
    "die Größe 漢字 😀",
    "a\tb\nc",
)
END = "<|end|>"


def byte_level(special: bool) -> Tokenizer:
    tokenizer = tokenizers_apart.byte_level(["t o", "o l", "to ol", "Ġ <", "< |"], [END])
    tokenizer.add_tokens([AddedToken(each, special=special, normalized=False) for each in NAMES])
    return tokenizer


def stripping() -> Tokenizer:
    """Return a tokenizer whose added tokens strip the adjacent spaces."""
    tokenizer = byte_level(special=False)
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("say", single_word=True)])
    return tokenizer


def pieces(special: bool) -> Tokenizer:
    tokenizer = tokenizers_apart.sentence_pieces(["▁", "t", "o", "ol", "to", "tool", "▁t", "<", "s", "a", "y"])
    tokenizer.add_tokens([AddedToken(each, special=special, normalized=False) for each in NAMES])
    return tokenizer


def composing() -> Tokenizer:
    """Return a tokenizer that normalizes text."""
    tokenizer = byte_level(special=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "special": lambda: byte_level(special=True),
    "added": lambda: byte_level(special=False),
    "stripping": stripping,
    "pieces": lambda: pieces(special=False),
    "special pieces": lambda: pieces(special=True),
    "composing": composing,
}
FORMS: dict[str, Callable[[str], Grammar]] = {
    "choice": lambda text: Grammar(GrammarKind.LARK, f"start: {json.dumps(text, ensure_ascii=False)}"),
    "choices": lambda text: Grammar(
        GrammarKind.LARK, f'start: {json.dumps(text, ensure_ascii=False)} | "<tool" | {json.dumps(text + "!")}'
    ),
    "regex": lambda text: Grammar(GrammarKind.REGEX, re.escape(text).replace("\\ ", " ") + "(a|<filename>)?"),
    "enum": lambda text: Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"enum": [text]})),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_what_the_mask_allows_the_automaton_takes(name: str, form: str) -> None:
    tokenizer = TOKENIZERS[name]()
    size, end = tokenizer.get_vocab_size() + 3, 2 if "pieces" in name else 0
    compiler = GrammarCompiler.of_tokenizer(tokenizer.to_str(), size, (end,))
    assert compiler is not None
    dice = random.Random(f"{name} {form}")
    for text in TEXTS:
        walk(compiler, FORMS[form](text), tokenizer, end, dice)


def walk(compiler: GrammarCompiler, grammar: Grammar, tokenizer: Tokenizer, end: int, dice: random.Random) -> None:
    """Draw tokens from the masks until the end. After each allowed token, the next mask allows some token."""
    output: list[int] = []
    for _ in range(120):
        state = compiler.compile(grammar)
        (mask,) = state.masks(output)
        assert mask is not None
        allowed = [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        assert allowed, (grammar.text, output)
        added = tokenizer.get_added_tokens_decoder()
        assert not any(added[each].special for each in allowed if each in added and each != end), "no text"
        for each in dice.sample(allowed, min(4, len(allowed))):
            behind = state.masks(output, (each,))[1]
            assert (behind is None) == (each == end), (grammar.text, output, each)
            assert behind is None or any(behind), (grammar.text, output, each)
        forced = state.forced(output, 99)
        assert len(state.masks(output, forced)) - state.masks(output, forced).count(None) == len(forced) + 1
        token = dice.choice(allowed)
        if token == end:
            return
        output.append(token)
    raise AssertionError("a text without an end")


def test_a_special_token_can_be_asked_for_by_its_name() -> None:
    tokenizer = byte_level(special=True)
    compiler = GrammarCompiler.of_tokenizer(tokenizer.to_str(), tokenizer.get_vocab_size(), (0,))
    assert compiler is not None
    state = compiler.compile(Grammar(GrammarKind.LARK, 'start: <tool_call> "a"'))
    tag = tokenizer.get_vocab()["<tool_call>"]
    assert state.forced((tag,), 9) == (tokenizer.get_vocab()["a"],)
    (mask,) = state.masks(())
    assert mask is not None
    assert mask[tag // 8] == 1 << tag % 8
