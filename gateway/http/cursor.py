"""How far a caller has come in a generation: the `id` of an event stream, and the headers that speak of it."""

import re
from collections.abc import Mapping

from gateway.request import check_name
from specdec.errors import FieldInvalid

_CURSOR = re.compile(r"(.+)\.([0-9]{1,9})")


def cursor(name: str, position: int) -> str:
    """The generation, and how many of its tokens its reader has by then."""
    return f"{name}.{position}"


def received(headers: Mapping[str, str], name: str = "") -> int:
    """The tokens that `Last-Event-ID` says were received; 0 without the header.

    Args:
        name: of the generation asked for; empty when the caller does not say.

    Raises:
        FieldInvalid: not an id of ours, or of another generation.
    """
    given = headers.get("last-event-id", "")
    if not given:
        return 0
    match = _CURSOR.fullmatch(given)
    if match is None or name not in ("", match[1]):
        raise FieldInvalid("Last-Event-ID is not the id of an event of this generation", "Last-Event-ID")
    return int(match[2])


def idempotency_key(headers: Mapping[str, str]) -> str:
    """What `Idempotency-Key` says; empty without the header.

    Raises:
        FieldInvalid: longer than is taken.
    """
    return check_name(headers.get("idempotency-key", ""), "Idempotency-Key")
