"""A changed byte of a stored turn is detected, wherever it is, and never becomes a token."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.values import SessionState, StoredRound, TurnView
from gateway.turns.turn import header_from_bytes, header_to_bytes, log_of, note_of, round_from
from specdec.errors import SessionDiverged
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from tests.unit.gateway.turns.in_memory import PROMPT, header

ROUND = Round(
    base_len=len(PROMPT),
    tokens=(72, 101),
    origins=(Origin.ACCEPTED, Origin.RECOVERED),
    draft=(72, 99),
    accepted=1,
    finish=FinishReason.LENGTH,
)
STORED = StoredRound(ROUND.tokens, "length", note_of(ROUND))


def flipped(data: st.DataObject, raw: bytes) -> bytes:
    """Return the bytes with one of them changed."""
    changed = bytearray(raw)
    changed[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(changed)


def view(rounds: Sequence[StoredRound], prompt: tuple[int, ...] = PROMPT) -> TurnView:
    return TurnView(SessionState.DONE, 0.0, prompt, header_to_bytes(header()), tuple(rounds))


@given(st.data())
def test_a_changed_byte_of_a_round_is_found(data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["tokens", "finish", "note", "base"]))
    base, stored = len(PROMPT), STORED
    match part:
        case "tokens":
            changed = bytearray(tokens_to_bytes(ROUND.tokens))
            changed[4 * data.draw(st.integers(0, 1)) + data.draw(st.integers(0, 2))] ^= data.draw(st.integers(1, 255))
            stored = replace(stored, tokens=tuple(tokens_from_bytes(bytes(changed))))
        case "finish":
            stored = replace(stored, finish=flipped(data, b"length").decode("latin-1"))
        case "note":
            stored = replace(stored, note=flipped(data, STORED.note))
        case "base":
            base += data.draw(st.integers(1, 9))
    with pytest.raises(SessionDiverged):
        round_from(stored, base)


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**31 - 1), max_size=3), st.text(max_size=6))
def test_arbitrary_bytes_are_no_round(note: bytes, tokens: list[int], finish: str) -> None:
    try:
        found = round_from(StoredRound(tuple(tokens), finish, note), 3)
    except SessionDiverged:
        return
    assert not found.tokens, "only an end that the store itself has written has no checksum"


@given(st.data())
def test_a_changed_byte_of_a_header_or_of_its_prompt_is_found(data: st.DataObject) -> None:
    blob = header_to_bytes(header())
    place = data.draw(st.integers(0, len(PROMPT) - 1))
    other = (*PROMPT[:place], PROMPT[place] ^ data.draw(st.integers(1, 255)), *PROMPT[place + 1 :])
    with pytest.raises(SessionDiverged):
        header_from_bytes(flipped(data, blob), PROMPT)
    with pytest.raises(SessionDiverged):
        header_from_bytes(blob, other)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_no_header(blob: bytes) -> None:
    with pytest.raises(SessionDiverged):
        header_from_bytes(blob, PROMPT)


def test_a_conversation_continues_from_checked_tokens_alone() -> None:
    assert log_of(view([STORED])) == (*PROMPT, 72, 101)
    with pytest.raises(SessionDiverged):
        log_of(view([replace(STORED, tokens=(72, 102))]))
    with pytest.raises(SessionDiverged):
        log_of(view([], prompt=(*PROMPT[:-1], 0)))


def test_a_round_with_a_field_of_a_newer_release_is_read_without_it() -> None:
    note = b'{"newer":1,' + STORED.note[9:]
    assert round_from(replace(STORED, note=note), len(PROMPT)) == ROUND


def test_what_was_written_before_there_were_checksums_is_read_as_it_is() -> None:
    assert round_from(replace(STORED, note=STORED.note[8:]), len(PROMPT)) == ROUND
    assert header_from_bytes(header_to_bytes(header())[8:], PROMPT) == header()
