"""How far a caller has come in a generation: the `id` of an event stream, and the headers that speak of it."""

import re
from collections.abc import Mapping, Sequence

from gateway.request import MAX_CHOICES, check_name
from specdec.errors import FieldInvalid

_CURSOR = re.compile(rf"([^.]+)((?:\.[0-9]{{1,9}}){{1,{MAX_CHOICES}}})")


def cursor(name: str, positions: Sequence[int]) -> str:
    """The generation, and how many tokens of each of its choices its reader has by then."""
    return ".".join((name, *map(str, positions)))


def received(headers: Mapping[str, str], name: str = "") -> tuple[int, ...]:
    """The tokens of each choice that `Last-Event-ID` says were received; nothing without the header.

    Args:
        name: of the generation asked for; empty when the caller does not say.

    Raises:
        FieldInvalid: not an id of ours, or of another generation.
    """
    given = headers.get("last-event-id", "")
    if not given:
        return ()
    match = _CURSOR.fullmatch(given)
    if match is None or name not in ("", match[1]):
        raise FieldInvalid("Last-Event-ID is not the id of an event of this generation", "Last-Event-ID")
    return tuple(map(int, match[2].split(".")[1:]))


def idempotency_key(headers: Mapping[str, str]) -> str:
    """What `Idempotency-Key` says; empty without the header.

    Raises:
        FieldInvalid: longer than is taken.
    """
    return check_name(headers.get("idempotency-key", ""), "Idempotency-Key")
