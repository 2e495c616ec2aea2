"""From the bytes of an HTTP request to a checked body; every refusal names the field, or the place in the bytes."""

import difflib
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from specdec.errors import FieldInvalid, FieldRequired, MessageTooLarge, RequestError, UnsupportedParameter

_MISTAKES = ("int_type", "greater_than_equal")
"""Errors of default-only fields that are plain mistakes, and no request for what the field does."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """The whole body; of one that is too large, little more than `limit` bytes are read.

    Args:
        chunks: the parts of the body, as they arrive.
        declared: the Content-Length header; None without one.
        limit: largest body, in bytes.

    Raises:
        MessageTooLarge: the body is over the limit.
    """
    error = MessageTooLarge(f"the body must be at most {limit} bytes")
    if declared and declared.isdecimal() and int(declared) > limit:
        raise error
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise error
    return bytes(body)


async def parse_body(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in the body of a request; raises RequestError."""
    return parse_json(await read_body(request.stream(), request.headers.get("content-length"), limit))


def parse_json(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        FieldRequired: the body is empty.
        FieldInvalid: it is not UTF-8, not JSON, cut short, nested too deep, or not an object.
    """
    if not raw:
        raise FieldRequired("the body is empty; it must be a JSON object")
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FieldInvalid(f"the body is not valid UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise FieldInvalid(f"the body is not valid JSON: {error.msg} at {where}") from error
    except (ValueError, RecursionError) as error:
        raise FieldInvalid("the body is not valid JSON: a number is too long or values are nested too deep") from error
    if not isinstance(value, dict):
        raise FieldInvalid("the body must be a JSON object")
    if _SURROGATE.search(raw):
        _refuse_surrogates(value, "")
    return value


class Body(BaseModel):
    """Base of all request bodies: types must match exactly, and unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    default_only: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that are known, and supported only at the value that does nothing."""

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """The checked body of a JSON object; raises RequestError for the first field that is wrong."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise cls._refusal(error.errors(include_url=False)[0], body) from error

    @classmethod
    def _refusal(cls, detail: ErrorDetails, body: dict[str, Any]) -> RequestError:
        param, name = _path(detail["loc"], body), str(detail["loc"][0])
        if (name in cls.default_only and detail["type"] not in _MISTAKES) or _takes_nothing(detail):
            return UnsupportedParameter(f"{param} is not supported at this value; leave it out", param)
        match detail["type"]:
            case "missing":
                return FieldRequired(f"{param} is required", param)
            case "extra_forbidden":
                close = difflib.get_close_matches(name, cls.model_fields, n=1) if len(detail["loc"]) == 1 else []
                hint = f"; did you mean {close[0]}?" if close else ""
                return UnsupportedParameter(f"unknown parameter {param}{hint}", param)
        message = detail["msg"]
        return FieldInvalid(f"{param}: {message[:1].lower()}{message[1:]}", param)


def _takes_nothing(detail: ErrorDetails) -> bool:
    """Whether the field accepts only null, or only an empty list."""
    return detail["type"] == "none_required" or detail.get("ctx", {}).get("max_length") == 0


def _path(location: Sequence[int | str], body: Any) -> str:
    """The path of a field as the caller wrote it: pydantic's location without the names of union members."""
    path, value = "", body
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and (part in value or part == location[-1]):
            path += f".{part}" if path else part
            value = value.get(part)
    return path


def _refuse_surrogates(value: Any, path: str) -> None:
    """Raise FieldInvalid where a string, at any depth, has half of a surrogate pair."""
    match value:
        case str():
            if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
                raise FieldInvalid(f"{path}: half of a surrogate pair is not text", path)
        case list():
            for index, item in enumerate(value):
                _refuse_surrogates(item, f"{path}[{index}]")
        case dict():
            for key, item in value.items():
                _refuse_surrogates(key, path)
                _refuse_surrogates(item, f"{path}.{key}" if path else key)
