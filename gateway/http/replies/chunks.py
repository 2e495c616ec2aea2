"""The chunks of a stream as JSON: what they have in common is encoded once, and no model is made for each.

`gateway.http.replies.objects` describes their shape.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

_TEXT = "\u241ftext\u241f"
"""Stands in a prepared chunk where the text goes."""


class ChunkTemplate:
    """Encodes the chunks of one stream."""

    def __init__(self, head: Mapping[str, object]) -> None:
        """`head` are the fields that every chunk has, with one value."""
        self._head = to_json(head)[:-1] + b","

    def chunk(self, choices: Iterable[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
        """The JSON of a chunk of those choices; a field that is a model is written without what nobody set."""
        rest = {**_plain(more), "choices": [_plain(choice) for choice in choices]}
        return self._head + to_json(rest, inf_nan_mode="null")[1:]


class TextTemplate:
    """Encodes chunks in which only the text differs."""

    def __init__(self, chunk: Callable[[str], bytes]) -> None:
        """`chunk` encodes a chunk with that text."""
        self._before, _, self._behind = chunk(_TEXT).rpartition(to_json(_TEXT))

    def chunk(self, text: str) -> bytes:
        """The JSON of the chunk with that text."""
        return self._before + to_json(text) + self._behind


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
        for name, value in fields.items()
    }
