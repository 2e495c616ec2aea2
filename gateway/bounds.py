"""Bounds of lists, objects and JSON in requests, over HTTP and over gRPC; duplicates in lists are removed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from specdec.errors import FieldInvalid

MAX_NESTING = 100
"""Deepest nesting of objects and lists in a field."""
MAX_BRACKETS = 64 * 1024
"""Most opening brackets of a request, including those in its texts, because some texts are parsed as JSON."""
MAX_COMMAS = 256 * 1024
"""Most commas of a request, including those in its texts; also bounds the number of token ids."""
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_IDS = 4096
"""Most token ids in one list, and most biases."""
MAX_MESSAGES = 8192
"""Most messages of a conversation; each costs some microseconds of the gateway."""
MAX_ARGUMENT_VALUES = 4096
"""Most objects, lists and values in the arguments of a chat template."""
MAX_ARGUMENT_CHARS = 256 * 1024
"""Most characters in the texts of these arguments."""


def unique_ids(ids: Collection[int], param: str) -> tuple[int, ...]:
    """Return the ids without duplicates; raises FieldInvalid if there are more than MAX_IDS."""
    if len(ids) > MAX_IDS:
        raise FieldInvalid(f"{param} takes at most {MAX_IDS} token ids, got {len(ids)}", param)
    return tuple(dict.fromkeys(ids))


def unique_stops(stops: Collection[str]) -> tuple[str, ...]:
    """Return the stop strings without duplicates; raises FieldInvalid if there are more than MAX_STOPS."""
    if len(stops) > MAX_STOPS:
        raise FieldInvalid(f"stop takes at most {MAX_STOPS} strings, got {len(stops)}", "stop")
    return tuple(dict.fromkeys(stops))


def check_stops(stops: Sequence[str]) -> None:
    """Raise FieldInvalid if there are too many stop strings, or one is empty or too long."""
    if not all(unique_stops(stops)):
        raise FieldInvalid("stop must not hold an empty string", "stop")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise FieldInvalid(f"a stop string has at most {MAX_STOP_CHARS} characters", "stop")


def check_bad_words(words: Sequence[str]) -> None:
    """Raise FieldInvalid if there are too many bad words, or one is blank or too long."""
    if len(words) > MAX_BAD_WORDS:
        raise FieldInvalid(f"bad_words takes at most {MAX_BAD_WORDS} texts, got {len(words)}", "bad_words")
    if not all(word.strip() for word in words):
        raise FieldInvalid("bad_words must not hold an empty text", "bad_words")
    if any(len(word) > MAX_BAD_WORD_CHARS for word in words):
        raise FieldInvalid(f"a bad word has at most {MAX_BAD_WORD_CHARS} characters", "bad_words")


def check_arguments(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the chat template's arguments; raises ValueError if they have too many values or characters."""
    values: list[Any] = [value]
    chars, index = 0, 0
    while index < len(values):
        each = values[index]
        index += 1
        if isinstance(each, str):
            chars += len(each)
        elif isinstance(each, dict):
            values += each.values()
            chars += sum(map(len, each))
        elif isinstance(each, list):
            values += each
        if len(values) > MAX_ARGUMENT_VALUES:
            raise ValueError(f"there are over {MAX_ARGUMENT_VALUES} values")
        if chars > MAX_ARGUMENT_CHARS:
            raise ValueError(f"there are over {MAX_ARGUMENT_CHARS} characters")
    return value


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
