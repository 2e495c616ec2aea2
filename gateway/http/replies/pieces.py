"""Serializes large answers in pieces, because one call for all of it would hold the interpreter lock throughout."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

_FEW = 16
"""Most models in a list that are serialized in pieces themselves; each model of a longer list is one piece."""
_PIECE = 64
"""Most other items of a list in one piece."""


def json_pieces(value: Any, exclude_unset: bool = False) -> Iterator[bytes]:
    """Yield the JSON of a value; joined, it equals `model_dump_json` for models without serializers of their own.

    Args:
        value: model, list of models, or a value that pydantic serializes.
        exclude_unset: whether unset fields of models are omitted.
    """
    if isinstance(value, BaseModel):
        names = [name for name in type(value).model_fields if not exclude_unset or name in value.model_fields_set]
        for index, name in enumerate(names):
            yield (b"," if index else b"{") + to_json(name) + b":"
            yield from json_pieces(getattr(value, name), exclude_unset)
        yield b"}" if names else b"{}"
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for index, item in enumerate(value):
            yield b"," if index else b"["
            if len(value) > _FEW:
                yield item.model_dump_json(exclude_unset=exclude_unset).encode()
            else:
                yield from json_pieces(item, exclude_unset)
        yield b"]"
    elif isinstance(value, list) and len(value) > _PIECE:
        for start in range(0, len(value), _PIECE):
            yield (b"," if start else b"[") + to_json(value[start : start + _PIECE], inf_nan_mode="null")[1:-1]
        yield b"]"
    else:
        yield to_json(value, inf_nan_mode="null")
