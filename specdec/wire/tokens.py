"""Token ids as the wire carries them: int32, little-endian, one after the other."""

import sys
from array import array
from collections.abc import Iterable

from specdec.errors import FieldInvalid

_BYTES = 4


def tokens_to_bytes(tokens: Iterable[int]) -> bytes:
    """Pack token ids."""
    return _little_endian(array("i", tokens)).tobytes()


def tokens_from_bytes(data: bytes) -> list[int]:
    """Unpack token ids.

    Raises:
        FieldInvalid: the length is not a multiple of four, or an id is negative.
    """
    if len(data) % _BYTES:
        raise FieldInvalid(f"tokens must be whole int32 values, got {len(data)} bytes", "tokens")
    tokens = array("i")
    tokens.frombytes(data)
    ids = _little_endian(tokens).tolist()
    if ids and min(ids) < 0:
        raise FieldInvalid(f"token ids must not be negative, got {min(ids)}", "tokens")
    return ids


def _little_endian(tokens: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
