"""Bounds of JSON that callers send, over HTTP and over gRPC."""

from typing import Any

from specdec.errors import FieldInvalid

MAX_NESTING = 100
"""Deepest nesting of objects and lists in a field."""
MAX_BRACKETS = 64 * 1024
"""Most opening brackets of a request, including those in its texts, because some texts are parsed as JSON."""
MAX_COMMAS = 256 * 1024
"""Most commas of a request, including those in its texts; also bounds the number of token ids."""


def check_nesting(value: Any, param: str) -> None:
    """Raise FieldInvalid if a field is nested too deep."""
    if depth(value) >= MAX_NESTING:
        raise FieldInvalid(f"{param} is nested over {MAX_NESTING} deep", param)


def depth(value: Any) -> int:
    """Return the nesting depth of objects and lists, counted up to MAX_NESTING."""
    level, deep = [value], 0
    while deep < MAX_NESTING:
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            break
        deep += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return deep
