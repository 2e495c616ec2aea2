"""From the bytes of an HTTP request to a checked body; every refusal names the field, or the place in the bytes."""

import difflib
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails
from starlette.requests import Request

from gateway.bounds import MAX_BRACKETS, MAX_COMMAS, MAX_IDS, check_nesting
from specdec.errors import (
    ContextLengthExceeded,
    EncodingUnsupported,
    FieldInvalid,
    FieldRequired,
    MessageTooLarge,
    RequestError,
    UnsupportedParameter,
)

_OF_CONTEXT = ("prompt", "tokens", "messages")
"""Fields that the model's context must have room for."""
_QUICK_BYTES = 32 * 1024
_QUICK_BRACKETS = 400
_READABLE = ("gzip", "x-gzip", "deflate")
_MEMBERS = 256
"""Most members of a compressed body. Empty ones add nothing to its size, and each takes microseconds."""
_PIECE = 64 * 1024
"""Most bytes that are decompressed at once, so that little is read of a body that grows too large."""
_MISTAKES = ("int_type", "greater_than_equal")
"""Errors of default-only fields that are mistakes of type or range, not requests for an unsupported feature."""
MAX_FIELDS = MAX_IDS
"""Most fields of one JSON object: each may be wrong, and every mistake takes memory."""
_LONGEST_GUESS = 64
"""Characters of the longest unknown field for which a known one is looked for."""
_LONE = re.compile("[\ud800-\udfff]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


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
    """Return the number of opening brackets or commas in the JSON of a value, with those inside texts. An estimate for
    lists."""
    text = repr(value)
    return sum(map(text.count, characters))


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """The whole body; of one that is too large, little more than `limit` bytes are read.

    Args:
        declared: the Content-Length header; None without one.

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


def body_chunks(request: Request) -> AsyncIterator[bytes]:
    """The bytes of a request's body as they come, without their Content-Encoding.

    Raises:
        EncodingUnsupported: they are compressed in a way that is not read.
    """
    return decoded(aiter(request.stream()), request.headers.get("content-encoding", ""))


def parse_json(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        FieldRequired: the body is empty.
        FieldInvalid: it is not UTF-8, not JSON, cut short, nested too deep, or not an object.
    """
    if not raw:
        raise FieldRequired("the body is empty; it must be a JSON object")
    objects = _Objects()
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=objects, parse_float=_number)
    except UnicodeDecodeError as error:
        raise FieldInvalid(f"the body is not valid UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise FieldInvalid(f"the body is not valid JSON: {error.msg} at {where}") from error
    except (ValueError, RecursionError) as error:
        raise FieldInvalid("the body is not valid JSON: a number is too long or values are nested too deep") from error
    if not isinstance(value, dict):
        many = isinstance(value, Oversized)
        raise FieldInvalid(f"the body has more than {MAX_FIELDS} fields" if many else "the body must be a JSON object")
    check_shape(value, raw)
    if objects.oversized:
        _refuse_where(value, lambda each: isinstance(each, Oversized), f" has more than {MAX_FIELDS} fields")
    if _SURROGATE.search(raw):
        _refuse_where(value, _has_lone_surrogate, ": half of a surrogate pair is not text")
    return value


class Oversized:
    """Stands in place of a JSON object with more than MAX_FIELDS fields until its place is known."""


class _Objects:
    """Makes the objects of a body from their fields."""

    oversized = False

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any] | Oversized:
        if len(pairs) <= MAX_FIELDS:
            return dict(pairs)
        self.oversized = True
        return Oversized()


def _number(text: str) -> float:
    """The number of a text with a point or an exponent: to JSON, 2.0 is a whole number."""
    value = float(text)
    return int(value) if value.is_integer() else value


class Body(BaseModel):
    """Base of all request bodies: types must match exactly, and unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    default_only: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that are known, and supported only at the value that does nothing."""
    annotations_only: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that clients add for other readers: accepted with any value, and without effect."""

    @model_validator(mode="before")
    @classmethod
    def _without_idle_fields(cls, value: Any) -> Any:
        """Leave out annotations, and unknown fields that are null, which ask for nothing."""
        known = _field_names(cls)
        if not isinstance(value, dict) or value.keys() <= known:
            return value
        idle = cls.annotations_only
        return {name: item for name, item in value.items() if name in known or not (item is None or name in idle)}

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """The checked body of a JSON object; raises RequestError for the first field that is wrong."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise cls._refusal(error.errors(include_url=False)[0], body) from error

    @classmethod
    def _refusal(cls, detail: ErrorDetails, body: dict[str, Any]) -> RequestError:
        param, name = _path(detail, body), str(detail["loc"][0])
        if (name in cls.default_only and detail["type"] not in _MISTAKES) or _takes_nothing(detail):
            return UnsupportedParameter(f"{param} is not supported at this value; leave it out", param)
        match detail["type"]:
            case "missing":
                return FieldRequired(f"{param} is required", param)
            case "extra_forbidden":
                guess = len(detail["loc"]) == 1 and len(name) <= _LONGEST_GUESS
                close = difflib.get_close_matches(name, cls.model_fields, n=1) if guess else []
                hint = f"; did you mean {close[0]}?" if close else ""
                return UnsupportedParameter(f"unknown parameter {param}{hint}", param)
        message = detail["msg"]
        return FieldInvalid(f"{param}: {message[:1].lower()}{message[1:]}", param)


@cache
def _field_names(model: type[Body]) -> frozenset[str]:
    """The names of a model's fields, as callers write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _takes_nothing(detail: ErrorDetails) -> bool:
    """Whether the field accepts only null, or only an empty list."""
    return detail["type"] == "none_required" or detail.get("ctx", {}).get("max_length") == 0


def _path(detail: ErrorDetails, body: Any) -> str:
    """The path of a field as the caller wrote it: pydantic's location without the names of union members."""
    path, value, lacking = "", body, detail["loc"][-1] if detail["type"] == "missing" else None
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and (part in value or part == lacking):
            path += f".{part}" if path else part
            value = value.get(part)
    return path


def _has_lone_surrogate(value: Any) -> bool:
    """Whether a text, or a name of an object's field, has half of a surrogate pair."""
    texts = value if isinstance(value, dict) else [value] if isinstance(value, str) else ()
    return any(_LONE.search(text) for text in texts)


def _refuse_where(body: dict[str, Any], wrong: Callable[[Any], bool], why: str) -> None:
    """Raise FieldInvalid for the first value, at any depth, that is wrong."""
    if (place := _place(body, wrong)) is not None:
        path = place.removeprefix(".")
        raise FieldInvalid(f"{path}{why}", path)


def _place(value: Any, wrong: Callable[[Any], bool]) -> str | None:
    """The path of the first value, at any depth, that is wrong, with a dot before its first name; None without any."""
    if wrong(value):
        return ""
    items: Iterable[tuple[str, Any]] = ()
    match value:
        case list():
            items = ((f"[{index}]", item) for index, item in enumerate(value))
        case dict():
            items = ((f".{key}", item) for key, item in value.items())
    return next((place + found for place, item in items if (found := _place(item, wrong)) is not None), None)


def decoded(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """The chunks of a body without its `Content-Encoding`.

    Raises:
        EncodingUnsupported: the encoding is not gzip or deflate.
        FieldInvalid: the bytes are not what the encoding says; raised while they are read.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return chunks
    if name not in _READABLE:
        raise EncodingUnsupported(f"Content-Encoding must be gzip, deflate or identity, got {encoding!r}")
    return _inflated(chunks, name)


async def _inflated(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    inflating, members = None, 0
    try:
        async for chunk in chunks:
            rest = chunk
            while rest:
                if inflating is None or inflating.eof:  # a gzip body may have several members
                    if (members := members + 1) > _MEMBERS:
                        raise FieldInvalid(f"the body has over {_MEMBERS} compressed members")
                    inflating = zlib.decompressobj(_window_bits(encoding, rest[0]))
                yield inflating.decompress(rest, _PIECE)
                rest = inflating.unused_data or inflating.unconsumed_tail
    except zlib.error as error:
        raise FieldInvalid(f"the body is not valid {encoding}: {error}") from error
    if inflating is not None and not inflating.eof:
        raise FieldInvalid(f"the body is not valid {encoding}: it is cut short")


def _window_bits(encoding: str, first: int) -> int:
    """Return zlib's window for a body with this first byte: with a gzip or zlib header, or of bare deflate blocks."""
    bare = encoding == "deflate" and first & 0x0F != zlib.DEFLATED
    return -zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32
