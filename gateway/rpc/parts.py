"""Bound of the parts of a gRPC message, counted before the message is parsed: each part takes memory and time."""

from functools import cache
from typing import Any

MAX_PARTS = 64 * 1024
"""Most fields of a message, with those of its inner messages. Enough for the largest allowed number of messages and
calls."""
QUICK_BYTES = 64 * 1024
"""Size of a message whose parts are few enough without a count."""
_LENGTH = 2
"""Wire type of texts, bytes and messages."""
_LAST = 0x7F
"""Largest byte that ends a number."""


def overfull_field(raw: bytes, kind: Any) -> str | None:
    """Return the field with which a message has over MAX_PARTS parts; None if it has fewer, or is no message.

    The name is that of the innermost repeated field; it is empty for a field that the type does not have.

    Args:
        raw: bytes of the message.
        kind: descriptor of its type.
    """
    try:
        return _overfull_field(raw, kind)
    except IndexError:
        return None


def _overfull_field(raw: bytes, kind: Any) -> str | None:
    inner, count = [(0, len(raw), kind, "")], 0
    while inner:
        at, end, own, repeated = inner.pop()
        messages = _messages(own)
        while at < end:
            tag, at = raw[at], at + 1
            if tag > _LAST:
                tag, at = _varint(raw, at - 1)
            count += 1
            if count > MAX_PARTS:
                return _name(own, tag >> 3, repeated)
            if tag & 7 != _LENGTH:
                at = _end(raw, at, tag & 7)
                continue
            size, at = raw[at], at + 1
            if size > _LAST:
                size, at = _varint(raw, at - 1)
            begin, at = at, at + size
            if size and (found := messages.get(tag)) is not None:
                message, name, many = found
                inner.append((begin, at if at < end else end, message, name if many or not repeated else repeated))
    return None


@cache
def _messages(kind: Any) -> dict[int, tuple[Any, str, bool]]:
    """Return type, name and whether it is repeated of each field that is a message, by tag."""
    return {
        number << 3 | _LENGTH: (field.message_type, field.name, field.is_repeated)
        for number, field in kind.fields_by_number.items()
        if field.message_type
    }


def _name(kind: Any, number: int, repeated: str) -> str:
    """Return the name of a field if it is repeated or in no repeated one, else that of the repeated field."""
    field = kind.fields_by_number.get(number)
    return field.name if field is not None and (field.is_repeated or not repeated) else repeated


def _end(raw: bytes, at: int, wire_type: int) -> int:
    """Return the index after a value of fixed or variable size. Groups have no value of their own."""
    return _varint(raw, at)[1] if wire_type == 0 else at + {1: 8, 5: 4}.get(wire_type, 0)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length integer at an index, and the index after it."""
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
