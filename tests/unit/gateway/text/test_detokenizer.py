"""Text token by token equals the text of the whole, for any division, and shows each character once it is certain."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import Decode, Detokenizer, Piece

END = 256


def byte_piece(token: int, first: bool) -> Piece:
    """Byte-level pieces: every token is a byte, and the end has no text."""
    return bytes([token]) if token < END else ""


OF_BYTES = Decode(byte_piece, {END: "<end>"})
ONE_BY_ONE = Decode(byte_piece, bytewise=True)


def word_piece(token: int, first: bool) -> Piece:
    """Pieces with a space before each word but the first."""
    word = ["one", "two", "", "three"][token]
    return f" {word}" if word and not first else word


OF_WORDS = Decode(word_piece)


def pushed(decode: Decode, tokens: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, before)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def test_a_character_comes_with_its_last_byte() -> None:
    assert pushed(OF_BYTES, list("a😀é".encode())) == ["a", "", "", "", "😀", "", "é", ""]


def test_tokens_that_wait_are_counted() -> None:
    detokenizer = Detokenizer(OF_BYTES)
    waiting = []
    for token in [*"a😀".encode(), *b"\xe2\xe2", END, *b"b"]:
        detokenizer.push(token)
        waiting.append(detokenizer.incomplete)
    assert waiting == [0, 1, 2, 3, 0, 1, 1, 2, 0]


def test_a_token_that_ends_one_character_and_begins_another_waits_alone() -> None:
    detokenizer = Detokenizer(Decode(lambda token, first: [b"\xf0\x9f", b"\x98\x80\xf0", b"\x9f\x98\x80"][token]))
    pieces = [(detokenizer.push(token), detokenizer.incomplete) for token in range(3)]
    assert pieces == [("", 1), ("😀", 1), ("😀", 0)]


@pytest.mark.parametrize(("decode", "shown"), [(OF_BYTES, "\ufffd"), (ONE_BY_ONE, "\ufffd\ufffd\ufffd")])
def test_half_a_character_at_the_end_is_shown_as_none(decode: Decode, shown: str) -> None:
    ids = list("ab😀".encode())[:-1]
    assert pushed(decode, ids)[-1] == shown
    assert decode(ids) == "ab" + shown
    assert "".join(decode.settled(ids)) == "ab"


def test_bytes_that_are_no_character_are_shown_as_soon_as_that_is_certain() -> None:
    assert pushed(OF_BYTES, [0xFF, 0xE2, 0x82, ord("a")]) == ["\ufffd", "", "", "\ufffda", ""]
    assert pushed(ONE_BY_ONE, [0xFF, 0xE2, 0x82, ord("a")]) == ["\ufffd", "", "", "\ufffd\ufffda", ""]


def test_a_special_token_has_no_text_and_does_not_part_a_character() -> None:
    detokenizer = Detokenizer(OF_BYTES)
    assert [detokenizer.push(token) for token in (97, END, 98)] == ["a", "", "b"]
    assert detokenizer.incomplete == 0
    assert "".join(pushed(OF_BYTES, [0xC3, END, 0xA9])) == "é"


def test_a_text_begins_with_its_first_token_that_has_text() -> None:
    assert pushed(OF_WORDS, [2, 0, 2, 1]) == ["", "one", "", " two", ""]
    assert pushed(OF_WORDS, [1], before=[2, 0]) == [" two", ""]
    assert pushed(OF_WORDS, [1], before=[2]) == ["two", ""]


@pytest.mark.parametrize("known", [0, 1, 2, 3, 4])
def test_the_output_goes_on_with_half_a_character_of_the_prompt(known: int) -> None:
    ids = list("a漢😀".encode())
    before, after = ids[: 4 + known], ids[4 + known :]
    assert "".join(pushed(OF_BYTES, after, before)) == ("" if known == 4 else "😀")
    assert pushed(OF_BYTES, [ord("b")], before)[0] == ("b" if known in (0, 4) else "\ufffdb")


@pytest.mark.parametrize("decode", [OF_BYTES, ONE_BY_ONE])
@given(tokens=st.lists(st.one_of(st.integers(0, END), st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F])), max_size=40))
def test_a_text_is_the_same_however_it_is_cut(decode: Decode, tokens: list[int]) -> None:
    whole = decode(tokens)
    assert "".join(pushed(decode, tokens)) == whole
    for cut in range(len(tokens)):
        assert "".join(decode.settled(tokens[:cut])) + "".join(pushed(decode, tokens[cut:], tokens[:cut])) == whole
    if decode is OF_BYTES:
        assert whole == bytes(token for token in tokens if token < END).decode(errors="replace")


def test_every_piece_is_asked_for_once() -> None:
    asked: list[int] = []

    def spell(token: int, first: bool) -> Piece:
        asked.append(token)
        return bytes([token])

    decode = Decode(spell)
    assert decode([0xA9] * 4000) == "\ufffd" * 4000
    assert len(asked) <= 3


def test_special_tokens_before_an_output_are_not_decoded_one_by_one() -> None:
    decoded = list[int]()

    def piece(token: int, first: bool) -> Piece:
        decoded.append(token)
        return byte_piece(token, first)

    decode, half = Decode(piece, {END: "<end>"}), list("😀".encode())
    assert pushed(decode, half[2:], [97, *half[:2], *[END] * 1000])[:2] == ["", "😀"]
    assert END not in decoded
