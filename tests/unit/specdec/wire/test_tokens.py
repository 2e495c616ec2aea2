"""Token ids are transmitted unchanged, and invalid bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import FieldInvalid
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_survive_the_wire(ids: list[int]) -> None:
    assert tokens_from_bytes(tokens_to_bytes(ids)) == ids


def test_the_bytes_are_int32_little_endian() -> None:
    assert tokens_to_bytes([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"


@pytest.mark.parametrize("data", [b"\x01", b"\x00" * 5, b"\x00\x00\x00\x80", b"\x01\x00\x00\x00\xff\xff\xff\xff"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FieldInvalid):
        tokens_from_bytes(data)
