"""Normalizes arguments of earlier tool calls, which clients send in many forms, to the object that templates read."""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

_UNREADABLE = (ValueError, RecursionError)


def arguments_text(given: Any) -> str:
    """Return arguments in any form as the text of a JSON object; never refuses any.

    Text of a JSON object stays unchanged. A truncated object keeps its complete parts and its last partial string. An
    object encoded twice is decoded. Null, an empty text and an empty list become an empty object. Any other value
    becomes the value of `arguments` in an object.
    """
    found = given
    for _ in range(2):
        if isinstance(found, str):
            kept, found = found, _parsed(found)
            if isinstance(found, dict):
                return kept.strip()
    if isinstance(given, str) and not isinstance(found, dict):
        found = _beginning(given, found)
    if found in (None, "", []):
        found = {}
    return json.dumps(found if isinstance(found, dict) else {"arguments": found}, ensure_ascii=False)


def arguments_object(text: str, huge: Callable[[str], Any]) -> dict[str, Any]:
    """Parse the text returned by `arguments_text`.

    Args:
        text: text of a JSON object.
        huge: converts the text of a number beyond the range of floats, such as 1e400, to a value.
    """

    def number(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) else huge(digits)

    read: dict[str, Any] = json.loads(text, parse_float=number, parse_constant=lambda _: None)
    return read


class HugeNumbers:
    """Passes numbers beyond the range of floats through a chat template, which serializes with `json.dumps`."""

    def __init__(self, mark: str) -> None:
        """Args: mark: text that occurs nowhere else in the rendered prompt."""
        self._mark = mark
        self._used = False

    def keep(self, digits: str) -> str:
        """Return the placeholder text of a number."""
        self._used = True
        return f"{self._mark}{digits}{self._mark}"

    def restore(self, rendered: str) -> str:
        """Return the rendered text with placeholders replaced by the original numbers."""
        mark = re.escape(self._mark)
        return re.sub(f'"{mark}([^"]*){mark}"|{mark}(.*?){mark}', r"\1\2", rendered) if self._used else rendered


def _parsed(text: str) -> Any:
    """Parse a JSON text; return invalid text unchanged."""
    try:
        return json.loads(text) if text.strip() else None
    except _UNREADABLE:
        return text


def _beginning(text: str, found: Any) -> Any:
    """Return the object at the start of a truncated text; `found` if there is none."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except _UNREADABLE:
        with suppress(*_UNREADABLE):
            value = from_json(text, allow_partial="trailing-strings")
            return value if isinstance(value, dict) else found
    return found  # a whole value, and something after it
