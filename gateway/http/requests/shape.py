"""Bounds of JSON that a caller sends, by which no later step takes long; measured before anything else walks it."""

from collections.abc import Mapping
from typing import Any

from gateway.tools.json_bounds import MAX_BRACKETS, MAX_COMMAS, check_nesting
from specdec.errors import ContextLengthExceeded, FieldInvalid

_OF_CONTEXT = ("prompt", "tokens", "messages")
"""Fields that the model's context must have room for."""
_QUICK_BYTES = 32 * 1024
_QUICK_BRACKETS = 400


def is_quick(raw: bytes) -> bool:
    """Whether any body of this size and this number of brackets is parsed in a few milliseconds."""
    return len(raw) <= _QUICK_BYTES and brackets(raw) <= _QUICK_BRACKETS


def brackets(raw: bytes) -> int:
    """Opening brackets in a body and its texts."""
    return raw.count(b"{") + raw.count(b"[")


def check_shape(body: Mapping[str, Any], raw: bytes) -> None:
    """Raise FieldInvalid or ContextLengthExceeded for a body that has too much in it; `param` is its largest field."""
    if brackets(raw) > MAX_BRACKETS:
        name = max(body, key=lambda each: _count(body[each], "{["))
        raise FieldInvalid(f"{name} makes the body have over {MAX_BRACKETS} opening brackets", name)
    if raw.count(b",") > MAX_COMMAS:
        name = max(body, key=lambda each: _count(body[each], ","))
        error = ContextLengthExceeded if name in _OF_CONTEXT else FieldInvalid
        raise error(f"{name} makes the body have over {MAX_COMMAS} commas", name)
    for name, value in body.items():
        check_nesting(value, name)


def _count(value: Any, characters: str) -> int:
    """Opening brackets or commas that a value has as JSON, those of its texts included; about right for lists."""
    text = repr(value)
    return sum(map(text.count, characters))
