"""Checksums between a script and its caller, so that flipped bytes on the way are found on both sides.

The last argument of a script is the SHA-1 of its keys and of its other arguments, one of which is different for every
call. The script does nothing when it does not fit, and its reply comes with the SHA-1 of that checksum and the reply:
neither a reply with other bytes, nor that of another call on a connection that is out of step, is taken for its own.
SHA-1 is the hash that every server offers to scripts; here it is against accidents, not against people.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from gateway.store import lua

Reply = list[Any]
"""A word and what belongs to it: bytes, None, integers, and lists of these."""


def checked(source: str) -> str:
    """The script that runs `source` where its keys and arguments are those that were sent."""
    return lua.script("checked").replace("SOURCE", source, 1)


def arguments_of(keys: Sequence[str], arguments: Sequence[str | bytes | float]) -> list[bytes]:
    """The arguments as they are sent, with one that no other call has, and with the checksum."""
    sent = [*map(_bytes, arguments), secrets.token_bytes(8)]
    return [*sent, _sha1(_flat([key.encode() for key in keys]) + _flat(sent))]


def reply_of(answer: Any, sent: Sequence[bytes]) -> Reply | None:
    """The reply in the answer to a script with the arguments `sent`.

    None when it is no answer to that, or when the script got other arguments: bytes were changed on the way.
    """
    match answer:
        case [bytes() as digest, [bytes(), *_] as found]:
            reply: Reply = found
            return reply if digest == digest_of(sent[-1], reply) else None
    return None


def digest_of(sent: bytes, reply: Reply) -> bytes:
    """The checksum of a reply to the call whose own checksum is `sent`."""
    return _sha1(sent + _flat(reply))


def _sha1(content: bytes) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest().encode()


def _bytes(argument: str | bytes | float) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()


def _flat(value: Any) -> bytes:
    if isinstance(value, list):
        return b"[" + b"".join(map(_flat, value)) + b"]"
    text = b"false" if value is None else _bytes(value)
    return b"%d:%b" % (len(text), text)
