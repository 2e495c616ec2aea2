"""Streams, whole texts and the tokenizer's own decoding agree, for tokenizers of every family and any ids."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gateway.text.detokenizer import REPLACEMENT, Decode, Detokenizer
from gateway.text.token_bytes import decode_of
from tests.support.tokenizers_apart import ALPHABET, byte_level, fast, likely_pieces, sentence_pieces, word_pieces

PIECES = ("▁", "▁a", "a", "▁▁", "▁▁x", "é", "漢", REPLACEMENT, ".", "\n", "<", "s", ">")
MERGES = ("Ġ a", "ð Ł", "ðŁ ĺ", "Ł ĺ", "ĺ Ģ", "a Ã", "© a", "ï ¿", "ï¿ ½", "Ġ Ġ")
WORDS = (
    "a",
    "b",
    "the",
    "##ing",
    "##é",
    "😀",
    "##😀",
    ".",
    "##.",
    ",",
    "n't",
    "##n't",
    "'",
    "do",
    "not",
    "##s",
    REPLACEMENT,
)
HARD = "😀👨‍👩‍👧é漢字ปี𝐀🇩🇪\u0301 \ufffd\ufeff"
ADDED = ("<tool>", " spaced ", "é")


def _with_added(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.add_tokens(list(ADDED))
    return tokenizer


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    match family:
        case "byte-level":
            return _with_added(fast(byte_level(MERGES, ["<|end|>", "<|start|>"]), "<|end|>"))
        case "byte fallback":
            return _with_added(fast(sentence_pieces(PIECES), "</s>"))
        case "unigram":
            return _with_added(fast(likely_pieces(PIECES), "</s>"))
    return _with_added(fast(word_pieces(WORDS), "[SEP]"))


FAMILIES = ("byte-level", "byte fallback", "unigram", "word pieces")


@cache
def decoder(family: str, special: bool = False) -> Decode:
    decode = decode_of(tokenizer_of(family))
    return decode.with_special if special else decode


def special_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [token for token, added in tokenizer.added_tokens_decoder.items() if added.special]


def spelled(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of a text's bytes if the vocabulary has byte tokens, otherwise the ids of the text."""
    vocabulary = tokenizer.get_vocab()
    if ALPHABET[0] in vocabulary and text:
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return [vocabulary[character] for character in bytewise.pre_tokenize_str(text)[0][0]]
    if "<0x00>" in vocabulary:
        return [vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]
    return list(tokenizer.encode(text, add_special_tokens=False))


def sequences(tokenizer: PreTrainedTokenizerFast) -> st.SearchStrategy[list[int]]:
    """Generate any ids, a few of them outside of the vocabulary, and bytes of characters, some of them incomplete."""
    anything = st.lists(st.integers(0, len(tokenizer) + 3), max_size=24)
    bytes_of = st.text(HARD, max_size=6).map(lambda text: spelled(tokenizer, text))
    cut = st.tuples(bytes_of, st.integers(0, 40), st.integers(0, 3)).map(lambda x: x[0][: x[1]] + x[0][x[1] + x[2] :])
    special = st.sampled_from(special_ids(tokenizer)).map(lambda token: [token])
    parts = st.one_of(anything, bytes_of, cut, special)
    return st.lists(parts, max_size=4).map(lambda each: [token for part in each for token in part])


def reference(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], special: bool) -> str:
    """Return the tokenizers library's text of the ids, with stray bytes replaced first.

    The library drops all characters of a run of byte tokens if one byte is part of no character. A later token would
    then take back text that a stream has shown. Here the token of U+FFFD replaces such a byte before decoding.
    """
    vocabulary = tokenizer.get_vocab()
    if "<0x00>" in vocabulary:
        skipped = [] if special else special_ids(tokenizer)
        known = [token for token in ids if token < len(tokenizer) and token not in skipped]
        ids = _without_strays(known, vocabulary)
    return str(tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False))


def _without_strays(ids: Sequence[int], vocabulary: dict[str, int]) -> list[int]:
    byte_tokens = [vocabulary[f"<0x{byte:02X}>"] for byte in range(256)]
    kept: list[int] = []
    for is_byte, run in groupby(ids, key=byte_tokens.__contains__):
        if not is_byte:
            kept += run
            continue
        for character in bytes(map(byte_tokens.index, run)).decode(errors="surrogateescape"):
            stray = "\udc80" <= character <= "\udcff"
            kept += [vocabulary[REPLACEMENT]] if stray else [byte_tokens[byte] for byte in character.encode()]
    return kept


def streamed(decode: Decode, ids: Sequence[int], before: Sequence[int] = ()) -> str:
    detokenizer = Detokenizer(decode, before)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_any_ids_have_the_tokenizers_own_text(family: str, special: bool, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(family)
    decode, ids = decoder(family, special), data.draw(sequences(tokenizer))
    expected = reference(tokenizer, ids, special)
    assert decode(ids) == expected
    assert streamed(decode, ids) == expected
    cut = data.draw(st.integers(0, len(ids)))
    assert "".join(decode.settled(ids[:cut])) + streamed(decode, ids[cut:], ids[:cut]) == expected


@pytest.mark.parametrize("family", FAMILIES[:3])
@given(text=st.text(HARD, max_size=20))
def test_every_character_of_a_run_arrives_with_its_last_token(family: str, text: str) -> None:
    tokenizer = tokenizer_of(family)
    decode, known = decoder(family), spelled(tokenizer, "a")
    detokenizer = Detokenizer(decode, known)
    for character in text:
        *pieces, last = [detokenizer.push(token) for token in spelled(tokenizer, character)]
        assert ("".join(pieces), last) == ("", character)
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("family", FAMILIES[:3])
@pytest.mark.parametrize("byte", [0xA9, 0x80, 0xE2, 0xFF])
def test_lone_bytes_are_shown_and_decoded_once(family: str, byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(family)
    decode = decode_of(tokenizer)
    alphabet = {0xA9: "©", 0x80: "Ģ", 0xE2: "â", 0xFF: "ÿ"}
    token = tokenizer.get_vocab()[alphabet[byte] if family == "byte-level" else f"<0x{byte:02X}>"]
    decoded = _counted(monkeypatch, tokenizer)
    assert streamed(decode, [token] * 4000) == REPLACEMENT * 4000
    assert decoded() < 10


def _counted(monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerFast) -> Callable[[], int]:
    calls: list[None] = []
    decode = tokenizer.decode

    def counting(*args: object, **options: object) -> object:
        calls.append(None)
        return decode(*args, **options)

    monkeypatch.setattr(tokenizer, "decode", counting)
    return lambda: len(calls)
