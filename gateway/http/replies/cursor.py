"""Resumption of streams: event ids, and the headers that request and return them."""

import re
from collections.abc import Mapping, Sequence

from gateway.callers.caller import check_name
from gateway.request import MAX_CHOICES
from specdec.errors import FieldInvalid

_DIGITS = 10
_CURSOR = re.compile(rf"([^.]+)((?:\.[0-9]{{1,9}}){{1,{MAX_CHOICES}}})")


def cursor(name: str, positions: Sequence[int]) -> str:
    """Return the id of an event: the generation's name, and the number of output tokens received, by choice."""
    return ".".join((name, *map(str, positions)))


def received(headers: Mapping[str, str], name: str = "") -> tuple[int, ...]:
    """Return the number of output tokens received, by choice, from `Last-Event-ID`; empty without the header.

    Args:
        headers: headers of the request.
        name: name of the requested generation; empty if the request names none.

    Raises:
        FieldInvalid: the id is malformed, or belongs to another generation.
    """
    given = headers.get("last-event-id", "")
    if not given:
        return ()
    match = _CURSOR.fullmatch(given)
    if match is None or name not in ("", match[1]):
        raise FieldInvalid("Last-Event-ID is not the id of an event of this generation", "Last-Event-ID")
    return tuple(map(int, match[2].split(".")[1:]))


def wants_ids(headers: Mapping[str, str]) -> bool:
    """Whether a header asks for event ids: `Specdec-Resumable: true`, or the `Last-Event-ID` of an earlier event.

    Raises:
        FieldInvalid: `Specdec-Resumable` is neither true nor false.
    """
    given = headers.get("specdec-resumable", "false").lower()
    if given not in ("true", "false"):
        raise FieldInvalid("Specdec-Resumable must be true or false", "Specdec-Resumable")
    return given == "true" or "last-event-id" in headers


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the `Idempotency-Key` header, or an empty string. Raises FieldInvalid if it is too long."""
    return check_name(headers.get("idempotency-key", ""), "Idempotency-Key")


def retries(headers: Mapping[str, str]) -> int | None:
    """Return the number of automatic retries, as OpenAI's and Anthropic's clients report it; otherwise None."""
    given = headers.get("x-stainless-retry-count", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < _DIGITS else None
