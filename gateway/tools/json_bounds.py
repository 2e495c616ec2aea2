"""Bounds of JSON that callers send, over HTTP and over gRPC."""

from typing import Any

from specdec.errors import FieldInvalid

MAX_NESTING = 100
"""Most objects and lists of a field that stand in each other."""
MAX_BRACKETS = 64 * 1024
"""Most opening brackets of a request, those of its texts included: some texts are read as JSON in turn."""
MAX_COMMAS = 256 * 1024
"""Most commas of a request, those of its texts included, and so most token ids."""


def check_nesting(value: Any, param: str) -> None:
    """Raise FieldInvalid where a field is nested too deep."""
    if depth(value) >= MAX_NESTING:
        raise FieldInvalid(f"{param} is nested over {MAX_NESTING} deep", param)


def depth(value: Any) -> int:
    """How many objects and lists stand in each other at most; counted up to MAX_NESTING."""
    level, deep = [value], 0
    while deep < MAX_NESTING:
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            break
        deep += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return deep
