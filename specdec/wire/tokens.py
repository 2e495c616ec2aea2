"""Translation of token ids to and from messages: int32, little-endian, consecutive."""

import sys
from array import array
from collections.abc import Iterable

from specdec.errors import FieldInvalid
from specdec.wire.codec import Pair

if sys.byteorder != "little":
    raise ImportError("messages are little-endian and this machine is not")

_BYTES = 4


def tokens_to_bytes(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


def tokens_from_bytes(data: bytes) -> list[int]:
    """Return the token ids in `data`.

    Raises:
        FieldInvalid: the length is not a multiple of four, or an id is negative.
    """
    if len(data) % _BYTES:
        raise FieldInvalid(f"tokens must be whole int32 values, got {len(data)} bytes", "tokens")
    tokens = array("i")
    tokens.frombytes(data)
    if not data[_BYTES - 1 :: _BYTES].isascii():  # the bytes with the signs; `min` would take as long as the rest
        raise FieldInvalid(f"token ids must not be negative, got {min(tokens)}", "tokens")
    return tokens.tolist()


TOKENS = Pair(tokens_to_bytes, lambda data: tuple(tokens_from_bytes(data)))
"""Translation of a field of token ids."""
