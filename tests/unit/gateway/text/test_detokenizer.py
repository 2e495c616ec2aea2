"""Text token by token, for tokenizers of several kinds, without half characters."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import CONTEXT, Detokenizer

Decode = Callable[[Sequence[int]], str]


def of_bytes(tokens: Sequence[int]) -> str:
    """Byte-level: every token is a byte; 256 is special and has no text."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


PIECES = ["▁the", "▁cat", "s", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁", "é"]


def of_pieces(tokens: Sequence[int]) -> str:
    """Sentencepiece-like with byte fallback: the first space is dropped, every stray byte is one replacement."""
    out: list[str | int] = []
    for piece in (PIECES[token] for token in tokens):
        out.append(int(piece[1:-1], 16) if piece.startswith("<0x") else piece.replace("▁", " "))
    text, run = "", b""
    for item in [*out, ""]:
        if isinstance(item, int):
            run += bytes([item])
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        text, run = text + item, b""
    return text.removeprefix(" ")


def ordinary(text: str) -> str:
    """The characters that do not come from byte pieces."""
    return "".join(character for character in text if character in " thecasé")


def pushed(decode: Decode, tokens: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, before)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def test_a_character_comes_with_its_last_byte() -> None:
    assert pushed(of_bytes, list("a😀é".encode())) == ["a", "", "", "", "😀", "", "é", ""]


def test_tokens_that_wait_are_counted() -> None:
    detokenizer = Detokenizer(of_bytes)
    waiting = []
    for token in "a😀b".encode():
        detokenizer.push(token)
        waiting.append(detokenizer.incomplete)
    assert waiting == [0, 1, 2, 3, 0, 0]


def test_half_a_character_at_the_end_is_dropped() -> None:
    assert "".join(pushed(of_bytes, list("ab😀".encode())[:-1])) == "ab"


def test_bytes_that_are_no_character_are_shown_when_that_is_certain() -> None:
    assert pushed(of_bytes, [0xFF, 0xFE, ord("a")]) == ["", "", "\ufffd\ufffda", ""]


def test_a_special_token_has_no_text_and_waits_for_nothing() -> None:
    detokenizer = Detokenizer(of_bytes)
    assert [detokenizer.push(token) for token in (97, 256, 98)] == ["a", "", "b"]
    assert detokenizer.incomplete == 0


def test_a_leading_space_is_kept_where_the_prompt_goes_before_it() -> None:
    assert pushed(of_pieces, [1, 2], before=[0]) == [" cat", "s", ""]
    assert pushed(of_pieces, [1, 2]) == ["cat", "s", ""]


def test_byte_fallback_characters_come_whole() -> None:
    assert pushed(of_pieces, [0, 3, 4, 5, 6, 1]) == ["the", "", "", "", "😀", " cat", ""]


@pytest.mark.parametrize("before", [(), tuple(b"Say "), tuple("é".encode())])
@given(text=st.text(max_size=60))
def test_the_pieces_of_a_text_are_the_text(before: tuple[int, ...], text: str) -> None:
    text = text.rstrip("\ufffd")
    assert "".join(pushed(of_bytes, list(text.encode()), before)) == text


@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=6 * CONTEXT))
def test_the_pieces_of_any_tokens_are_their_text(tokens: list[int]) -> None:
    whole = of_pieces([0, *tokens]).removeprefix("the")
    text = "".join(pushed(of_pieces, tokens, before=[0]))
    assert ordinary(text) == ordinary(whole)
    # A stray byte right behind a character spoils its whole run of bytes, and what was shown is not taken back.
    if "\ufffd" not in whole:
        assert text == whole
