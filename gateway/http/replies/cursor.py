"""Coming back to a stream: the header that asks for it, the `id` of each event, and the header that sends it back."""

import re
from collections.abc import Mapping, Sequence

from gateway.callers.caller import check_name
from gateway.request import MAX_CHOICES
from specdec.errors import FieldInvalid

_DIGITS = 10
_CURSOR = re.compile(rf"([^.]+)((?:\.[0-9]{{1,9}}){{1,{MAX_CHOICES}}})")


def cursor(name: str, positions: Sequence[int]) -> str:
    """The id of an event: the generation's name, and how many output tokens of each choice a client has with it."""
    return ".".join((name, *map(str, positions)))


def received(headers: Mapping[str, str], name: str = "") -> tuple[int, ...]:
    """How many output tokens of each choice the client has by its `Last-Event-ID`; empty without the header.

    Args:
        name: of the generation that is asked for; empty when the request names none.

    Raises:
        FieldInvalid: the id is malformed, or of another generation.
    """
    given = headers.get("last-event-id", "")
    if not given:
        return ()
    match = _CURSOR.fullmatch(given)
    if match is None or name not in ("", match[1]):
        raise FieldInvalid("Last-Event-ID is not the id of an event of this generation", "Last-Event-ID")
    return tuple(map(int, match[2].split(".")[1:]))


def wants_ids(headers: Mapping[str, str]) -> bool:
    """Whether a header asks for events with ids: `Specdec-Resumable: true`, or the `Last-Event-ID` of an earlier one.

    Raises:
        FieldInvalid: `Specdec-Resumable` is neither true nor false.
    """
    given = headers.get("specdec-resumable", "false").lower()
    if given not in ("true", "false"):
        raise FieldInvalid("Specdec-Resumable must be true or false", "Specdec-Resumable")
    return given == "true" or "last-event-id" in headers


def idempotency_key(headers: Mapping[str, str]) -> str:
    """The `Idempotency-Key` header; empty without it. Raises FieldInvalid when it is too long."""
    return check_name(headers.get("idempotency-key", ""), "Idempotency-Key")


def retries(headers: Mapping[str, str]) -> int | None:
    """How often the client has repeated the request by itself, as OpenAI's and Anthropic's clients say; else None."""
    given = headers.get("x-stainless-retry-count", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < _DIGITS else None
