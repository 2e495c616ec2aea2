"""A checksum behind every message between services, so that flipped bytes are found and never become tokens.

The last field of each message is `fixed32 checksum = 15`: the CRC-32 of all bytes before it. A client declares with
METADATA that its messages have one. A server that reads the declaration takes no message without, and answers with
them; any other caller is served as before. A client takes no answer without one. So a call whose declaration was
spoiled, and whose messages the server therefore did not check, has no answer that counts.

A CRC protects against accidents of wires and memory; against people who change messages, there is TLS.
"""

import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import grpc.aio

from specdec.errors import MessageCorrupted, SpecdecError
from specdec.serving.telemetry.tracing import trace_headers

OURS = "/specdec."
"""What the methods of our services begin with."""
METADATA = (("specdec-checksum", "crc32"),)
"""What a client sends with every call."""
_KINDS = frozenset(("unary_unary", "unary_stream", "stream_unary", "stream_stream"))
_TAG = bytes([15 << 3 | 5])
SIZE = len(_TAG) + 4
"""Bytes that a checksum adds to a message."""

_Message = TypeVar("_Message")


def sealed(raw: bytes) -> bytes:
    """A serialized message with its checksum."""
    return raw + _TAG + zlib.crc32(raw).to_bytes(4, "little")


def is_intact(raw: bytes) -> bool:
    """Whether a serialized message ends with the checksum of the rest."""
    body, end = memoryview(raw)[:-SIZE], raw[-SIZE:]
    return end == _TAG + zlib.crc32(body).to_bytes(4, "little")


def encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that seals what `encode` makes."""
    return lambda message: sealed(encode(message))


def decoder(decode: Callable[[bytes], _Message]) -> Callable[[bytes], "_Message | MessageCorrupted"]:
    """A deserializer that gives the error in place of a message that is not intact, as grpc takes no error from it."""

    def decoded(raw: bytes) -> _Message | MessageCorrupted:
        if not is_intact(raw):
            return MessageCorrupted("a message came without its checksum, or with bytes that do not fit it")
        try:
            return decode(raw)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer sent no message of this type
            return MessageCorrupted(f"a message cannot be decoded: {error}")

    return decoded


def received(message: _Message | SpecdecError) -> _Message:
    """The message; raises the error that stands in its place."""
    if isinstance(message, SpecdecError):
        raise message
    return message


def is_declared(metadata: Any) -> bool:
    """Whether the metadata of a call declares checksums."""
    return METADATA[0] in {(key, value) for key, value in metadata or ()}


class CheckedChannel:
    """A channel whose messages have checksums in both directions; `received` takes its answers.

    Services of others, as for health, are called as they are.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Every call of our services also sends `metadata`, and the trace that it belongs to."""
        self._channel = channel
        self._metadata = (*METADATA, *metadata)

    async def __aenter__(self) -> grpc.aio.Channel:
        await self._channel.__aenter__()
        return cast("grpc.aio.Channel", self)

    async def __aexit__(self, *exception: Any) -> None:
        await self._channel.__aexit__(*exception)

    async def close(self, grace: float | None = None) -> None:
        """Close the channel; calls that run end after `grace` seconds."""
        await self._channel.close(grace)

    def __getattr__(self, name: str) -> Any:
        """`unary_unary` and the other three kinds of calls, with the arguments of stubs; the rest is the channel's."""
        make = getattr(self._channel, name)
        if name not in _KINDS:
            return make

        def multicallable(
            method: str, request_serializer: Any = _as_is, response_deserializer: Any = _as_is, **options: Any
        ) -> Any:
            if not method.startswith(OURS):
                return make(method, request_serializer, response_deserializer, **options)
            call = make(method, encoder(request_serializer), decoder(response_deserializer), **options)
            return lambda *request, metadata=(), **rest: call(
                *request, metadata=(*self._metadata, *trace_headers().items(), *metadata), **rest
            )

        return multicallable


def _as_is(message: Any) -> Any:
    return message
