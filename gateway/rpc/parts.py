"""Bound of the parts of a gRPC message, counted before the message is parsed: each part takes memory and time."""

from typing import Any

MAX_PARTS = 64 * 1024
"""Most fields of a message, those of its inner messages included."""
QUICK_BYTES = 64 * 1024
"""Size of a message whose parts need no count."""


def has_too_many_parts(raw: bytes, kind: Any) -> bool:
    """Whether a message of more than QUICK_BYTES has over MAX_PARTS parts. Bytes that are no message have not.

    Args:
        raw: bytes of the message.
        kind: descriptor of its type.
    """
    if len(raw) <= QUICK_BYTES:
        return False
    try:
        return _count(raw, kind) > MAX_PARTS
    except IndexError:
        return False


def _count(raw: bytes, kind: Any) -> int:
    """Return the number of fields, counted no further than one over MAX_PARTS."""
    inner, count = [(0, len(raw), kind)], 0
    while inner:
        at, end, own = inner.pop()
        while at < end and count <= MAX_PARTS:
            tag, at = _varint(raw, at)
            count += 1
            match tag & 7:
                case 0:
                    _, at = _varint(raw, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, at = _varint(raw, at)
                    field = own.fields_by_number.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        inner.append((at, min(at + size, end), field.message_type))
                    at += size
    return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length integer at an index, and the index behind it."""
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
