"""A stored value reveals nothing, belongs to one name and one key, and every change of it is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import KvSettings
from gateway.kv.store import BlockCipher

KEY = bytes(range(32))
VALUE = b"keys and values" * 9


def test_it_comes_back_under_its_name_and_key_alone() -> None:
    stored = BlockCipher(KEY).encrypt("kv:1:a", VALUE)
    assert VALUE not in stored
    assert BlockCipher(KEY).decrypt("kv:1:a", stored) == VALUE
    assert BlockCipher(KEY).decrypt("kv:1:b", stored) == b""
    assert BlockCipher(bytes(32)).decrypt("kv:1:a", stored) == b""
    assert BlockCipher(KEY).encrypt("kv:1:a", VALUE) != stored


@given(st.data())
def test_every_changed_byte_is_found(data: st.DataObject) -> None:
    stored = bytearray(BlockCipher(KEY).encrypt("n", VALUE))
    place = data.draw(st.integers(0, len(stored) - 1))
    stored[place] ^= data.draw(st.integers(1, 255))
    assert BlockCipher(KEY).decrypt("n", bytes(stored)) == b""


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_no_value(stored: bytes) -> None:
    assert BlockCipher(KEY).decrypt("n", stored) == b""


def test_a_key_is_64_digits_and_is_never_shown() -> None:
    assert "ab" not in repr(KvSettings(key="ab" * 32))  # type: ignore[arg-type]
    for wrong in ("ab" * 31, "secret" * 11):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            KvSettings(key=wrong)  # type: ignore[arg-type]
