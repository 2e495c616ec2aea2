"""A checksum at the end of every message between services, so that corrupted bytes are detected.

The last field of each message is `fixed32 checksum = 15`: the CRC-32 of all bytes before it. A client declares its
checksums in METADATA. The server then requires them and adds them to its responses; other callers are served without. A
client rejects a response without a checksum. A call with a corrupted declaration, whose messages the server did not
check, therefore fails at the client.

A CRC protects against accidental corruption; TLS protects against tampering.
"""

import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import grpc.aio

from specdec.errors import MessageCorrupted, SpecdecError
from specdec.serving.telemetry.tracing import trace_headers

OURS = "/specdec."
"""Prefix of the methods of specdec services."""
METADATA = (("specdec-checksum", "crc32"),)
"""Metadata that a client sends with every call."""
_KINDS = frozenset(("unary_unary", "unary_stream", "stream_unary", "stream_stream"))
_TAG = bytes([15 << 3 | 5])
SIZE = len(_TAG) + 4
"""Number of bytes that a checksum adds to a message."""

_Message = TypeVar("_Message")


def sealed(raw: bytes) -> bytes:
    """Return a serialized message with its checksum."""
    return raw + _TAG + zlib.crc32(raw).to_bytes(4, "little")


def is_intact(raw: bytes) -> bool:
    """Whether a serialized message ends with the checksum of its other bytes."""
    body, end = memoryview(raw)[:-SIZE], raw[-SIZE:]
    return end == _TAG + zlib.crc32(body).to_bytes(4, "little")


def encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return a serializer that adds a checksum to the output of `encode`."""
    return lambda message: sealed(encode(message))


def decoder(decode: Callable[[bytes], _Message]) -> Callable[[bytes], "_Message | MessageCorrupted"]:
    """Return a deserializer that returns a MessageCorrupted for a corrupted message, as it must not raise in gRPC."""

    def decoded(raw: bytes) -> _Message | MessageCorrupted:
        if not is_intact(raw):
            return MessageCorrupted("a message came without its checksum, or with bytes that do not fit it")
        try:
            return decode(raw)
        except Exception as error:  # noqa: BLE001 - the peer sent no message of this type
            return MessageCorrupted(f"a message cannot be decoded: {error}")

    return decoded


def received(message: _Message | SpecdecError) -> _Message:
    """Return the message, or raise the error in its place."""
    if isinstance(message, SpecdecError):
        raise message
    return message


def is_declared(metadata: Any) -> bool:
    """Whether the metadata of a call declares checksums."""
    return METADATA[0] in {(key, value) for key, value in metadata or ()}


class CheckedChannel:
    """A channel whose messages have checksums in both directions. `received` unwraps its responses.

    Calls to other services, such as health, are passed through.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Wrap a channel. Every call to a specdec service also sends `metadata` and the current trace."""
        self._channel = channel
        self._metadata = (*METADATA, *metadata)

    async def __aenter__(self) -> grpc.aio.Channel:
        await self._channel.__aenter__()
        return cast("grpc.aio.Channel", self)

    async def __aexit__(self, *exception: Any) -> None:
        await self._channel.__aexit__(*exception)

    async def close(self, grace: float | None = None) -> None:
        """Close the channel. Running calls end after `grace` seconds."""
        await self._channel.close(grace)

    def __getattr__(self, name: str) -> Any:
        """Return one of the four call kinds, such as `unary_unary`, for stubs, or another attribute of the channel."""
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
