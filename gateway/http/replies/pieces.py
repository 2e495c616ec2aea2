"""Serializes large answers in pieces, because one call for all of it would hold the interpreter lock throughout."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from gateway.request import MAX_CHOICES

_FEW = MAX_CHOICES
"""Most models in a list that are serialized in pieces themselves; each model of a longer list is one piece."""
_PIECE = 64
"""Most other items of a list in one piece."""
_IDS = 4096
"""Token ids of a list in one piece."""
_MADE = 16
"""Items of a deferred list in one piece."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """List whose items are made as they are written.

    Hundreds of thousands of objects at once would let a garbage collection hold the interpreter lock for a second.
    """

    items: Sequence[Any]
    make: Callable[[Any], Any]
    """Returns a value that pydantic serializes."""


def json_pieces(value: Any, exclude_unset: bool = False) -> Iterator[bytes]:
    """Yield the JSON of a value; joined, it equals `model_dump_json` for models without serializers of their own.

    Args:
        value: model, list of models, deferred list, or a value that pydantic serializes.
        exclude_unset: whether unset fields of models are omitted.
    """
    if isinstance(value, BaseModel):
        names = [name for name in type(value).model_fields if not exclude_unset or name in value.model_fields_set]
        yield from object_pieces(((name, getattr(value, name)) for name in names), exclude_unset)
    elif isinstance(value, dict) and value and all(isinstance(item, BaseModel) for item in value.values()):
        yield from object_pieces(value.items(), exclude_unset)
    elif isinstance(value, Deferred):
        yield from _batches(map(value.make, value.items), _MADE)
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel) and len(value) <= _FEW:
        yield from _list(json_pieces(item, exclude_unset) for item in value)
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        yield from _list([item.model_dump_json(exclude_unset=exclude_unset).encode()] for item in value)
    elif isinstance(value, list) and len(value) > _PIECE:
        yield from _batches(iter(value), _IDS if isinstance(value[0], int) else _PIECE)
    else:
        yield to_json(value, inf_nan_mode="null")


def object_pieces(items: Iterable[tuple[str, Any]], exclude_unset: bool = False) -> Iterator[bytes]:
    """Yield the JSON of an object with these values, each in pieces as in `json_pieces`."""
    before = b"{"
    for name, value in items:
        yield before + to_json(name) + b":"
        yield from json_pieces(value, exclude_unset)
        before = b","
    yield b"{}" if before == b"{" else b"}"


def _list(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    before = b"["
    for pieces in items:
        yield before
        yield from pieces
        before = b","
    yield b"[]" if before == b"[" else b"]"


def _batches(items: Iterator[Any], size: int) -> Iterator[bytes]:
    batches = iter(lambda: list(islice(items, size)), [])
    return _list([to_json(batch, inf_nan_mode="null")[1:-1]] for batch in batches)
