"""Bytes of single tokens, from tokenizers of both kinds."""

from collections.abc import Sequence

import pytest

from gateway.text.token_bytes import token_bytes
from tests.support.tiny_models import END_TOKEN, END_TOKEN_ID, make_tokenizer


class Unigram:
    """Decodes like SentencePiece: no space at the start, one replacement character for a stray byte."""

    WORDS = ("<s>", "\u2581the", "\u2581", "cat", "<0xF0>", "<0x0A>", "\ufffd", "\u2581\u2581x")

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        (word,) = (self.WORDS[token] for token in tokens)
        if word == "<0x0A>":
            return "\n"
        return "\ufffd" if word.startswith("<0x") else word.replace("\u2581", " ").removeprefix(" ")

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.WORDS[token]


def test_every_byte_of_a_byte_level_vocabulary_is_itself() -> None:
    tokenizer = make_tokenizer(320)
    found = [token_bytes(tokenizer, token) for token in range(320)]
    assert {each for each in found if len(each) == 1} == {bytes([byte]) for byte in range(256)}
    assert found[END_TOKEN_ID] == END_TOKEN.encode()


@pytest.mark.parametrize("text", ["naïve 漢字 😀\n\t x", "plain words"])
def test_the_tokens_of_a_text_are_its_bytes(text: str) -> None:
    tokenizer = make_tokenizer(320)
    assert b"".join(token_bytes(tokenizer, token) for token in tokenizer.encode(text)) == text.encode()


def test_a_word_keeps_the_space_that_decoding_drops() -> None:
    found = [token_bytes(Unigram(), token) for token in range(len(Unigram.WORDS))]
    assert found == [b"<s>", b" the", b" ", b"cat", b"\xf0", b"\n", "\ufffd".encode(), b"  x"]
