"""Arguments of earlier calls: clients keep them in many forms, and chat templates read an object."""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

_UNREADABLE = (ValueError, RecursionError)


def arguments_text(given: Any) -> str:
    """The text of a JSON object for arguments in any form; nothing that a model or a client wrote is refused.

    Text of a JSON object stays as it is. An object that was cut keeps what is complete, and its last string as far as
    it goes; an object encoded twice is decoded. Null, an empty text and an empty list are an empty object. All else
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
    """The object that the text of `arguments_text` holds.

    Args:
        huge: gives the value of a number that no float can hold, such as 1e400, from its text.
    """

    def number(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) else huge(digits)

    read: dict[str, Any] = json.loads(text, parse_float=number, parse_constant=lambda _: None)
    return read


class HugeNumbers:
    """Carries numbers that no float can hold through a chat template, which writes values with `json.dumps`."""

    def __init__(self, mark: str) -> None:
        """`mark` is a text that occurs nowhere else in the rendered prompt."""
        self._mark = mark
        self._used = False

    def keep(self, digits: str) -> str:
        """The text that stands for a number in values."""
        self._used = True
        return f"{self._mark}{digits}{self._mark}"

    def restore(self, rendered: str) -> str:
        """The rendered text with the numbers as they were written."""
        mark = re.escape(self._mark)
        return re.sub(f'"{mark}([^"]*){mark}"|{mark}(.*?){mark}', r"\1\2", rendered) if self._used else rendered


def _parsed(text: str) -> Any:
    """The value of a JSON text; a text that is none stays as it is."""
    try:
        return json.loads(text) if text.strip() else None
    except _UNREADABLE:
        return text


def _beginning(text: str, found: Any) -> Any:
    """The object that a cut text begins; `found` where it begins none."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except _UNREADABLE:
        with suppress(*_UNREADABLE):
            value = from_json(text, allow_partial="trailing-strings")
            return value if isinstance(value, dict) else found
    return found  # a whole value, and something after it
