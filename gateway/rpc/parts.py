"""Bound of the parts of a gRPC message, counted before the message is parsed: each part takes memory and time."""

from typing import Any

MAX_PARTS = 64 * 1024
"""Most fields of a message, those of its inner messages included."""
QUICK_BYTES = 64 * 1024
"""Size of a message whose parts need no count."""


def overfull_field(raw: bytes, kind: Any) -> str | None:
    """Return the field with which a message has over MAX_PARTS parts; None if it has fewer, or is no message.

    Messages of up to QUICK_BYTES are not counted. The name is that of the innermost repeated field; it is empty for a
    field that the type does not have.

    Args:
        raw: bytes of the message.
        kind: descriptor of its type.
    """
    if len(raw) <= QUICK_BYTES:
        return None
    try:
        return _overfull_field(raw, kind)
    except IndexError:
        return None


def _overfull_field(raw: bytes, kind: Any) -> str | None:
    inner, count = [(0, len(raw), kind, "")], 0
    while inner:
        at, end, own, repeated = inner.pop()
        while at < end:
            tag, at = _varint(raw, at)
            field = own.fields_by_number.get(tag >> 3)
            name = field.name if field is not None and (field.is_repeated or not repeated) else repeated
            count += 1
            if count > MAX_PARTS:
                return name
            begin, at = _value(raw, at, tag & 7)
            if field is not None and field.message_type is not None:
                inner.append((begin, min(at, end), field.message_type, name if field.is_repeated else repeated))
    return None


def _value(raw: bytes, at: int, wire_type: int) -> tuple[int, int]:
    """Return the begin and the end of a field's value, after its tag; groups have no value of their own."""
    match wire_type:
        case 0:
            return at, _varint(raw, at)[1]
        case 2:
            size, begin = _varint(raw, at)
            return begin, begin + size
    return at, at + {1: 8, 5: 4}.get(wire_type, 0)


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
