"""Checksums between a script and its caller, which detect corrupted bytes in both directions.

The last argument of a script is the SHA-1 of its keys and other arguments, one of which is a nonce. If the checksum
does not match, the script does nothing. The reply carries the SHA-1 of that checksum and the reply, so the caller
detects both corrupted replies and replies to another call on a desynchronized connection. SHA-1 is the hash that every
server offers to scripts. It protects against accidents, not against attackers.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from gateway.store import lua

Reply = list[Any]
"""Reply of a script: a status word and its values, which are bytes, None, integers, or lists of these."""


def checked(source: str) -> str:
    """Wrap `source` in a script that runs it only if the checksum of keys and arguments matches."""
    return lua.script("checked").replace("SOURCE", source, 1)


def arguments_of(keys: Sequence[str], arguments: Sequence[str | bytes | float]) -> list[bytes]:
    """Return the arguments to send, with a nonce and the checksum appended."""
    sent = [*map(_bytes, arguments), secrets.token_bytes(8)]
    return [*sent, _sha1(_flat([key.encode() for key in keys]) + _flat(sent))]


def reply_of(answer: Any, sent: Sequence[bytes]) -> Reply | None:
    """Return the reply in the server's answer to the arguments `sent`.

    None means that the answer belongs to another call, or that arguments or reply were corrupted.
    """
    match answer:
        case [bytes() as digest, [bytes(), *_] as found]:
            reply: Reply = found
            return reply if digest == digest_of(sent[-1], reply) else None
    return None


def digest_of(sent: bytes, reply: Reply) -> bytes:
    """Return the checksum of a reply to the call with the checksum `sent`."""
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
