"""Refuses gRPC messages that are too large, are no protobuf, or have text that is not UTF-8, like any bad input.

Where a caller declares checksums, they are checked here, and the answers get theirs.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import FieldInvalid, MessageCorrupted, MessageTooLarge
from specdec.serving.rpc import checksum

# The types of gRPC's handlers are for synchronous servers only.
Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]

_INVALID = "the message is not valid: its bytes are not protobuf, or a string in it is not UTF-8"


class HandlerInterceptor(grpc.aio.ServerInterceptor, ABC):
    """Changes the handlers of our services; health and reflection handle their own errors."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/specdec."):
            return handler
        return self.changed(handler, handler_call_details)

    @abstractmethod
    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """The handler that serves in place of this one."""


class DecodeInterceptor(HandlerInterceptor):
    """Raises an error of ours where grpc itself would fail without a reason; it runs inside ErrorInterceptor."""

    def __init__(self, max_bytes: int) -> None:
        """Refuse messages of more than `max_bytes`."""
        self._max_bytes = max_bytes

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        sealed = checksum.is_declared(details.invocation_metadata)
        decode, encode = self._lenient(handler.request_deserializer, sealed), handler.response_serializer
        check = _checked_stream if handler.request_streaming else checksum.received
        return rebuilt(handler, decode, checksum.encoder(encode) if sealed else encode, check=check)

    def _lenient(self, decode: Callable[[bytes], Any], sealed: bool) -> Callable[[bytes], Any]:
        """A deserializer cannot answer with an error: it returns the error in place of the message."""

        def decoded(raw: bytes) -> Any:
            if len(raw) > self._max_bytes:
                return MessageTooLarge(f"a message must be at most {self._max_bytes} bytes")
            if sealed and not checksum.is_intact(raw):
                return MessageCorrupted("the message does not fit its checksum")
            try:
                return decode(raw)
            except (DecodeError, UnicodeDecodeError):
                return FieldInvalid(_INVALID)

        return decoded


def rebuilt(
    handler: Handler,
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    *,
    check: Callable[[Any], Any] = lambda request: request,
    around: Callable[[Context], AbstractAsyncContextManager[Any]] = nullcontext,
) -> Handler:
    """A handler of the same kind, whose calls run inside `around` with what `check` makes of their requests."""
    ways = (handler.request_streaming, handler.response_streaming)
    kind = "_".join("stream" if streams else "unary" for streams in ways)
    inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")

    async def unary(request: Any, context: Context) -> Any:
        async with around(context):
            return await inner(check(request), context)

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        async with around(context):
            async for response in inner(check(request), context):
                yield response

    return make(stream if handler.response_streaming else unary, decode, encode)


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The messages; raises the error that stands in the place of one."""
    async for request in requests:
        yield checksum.received(request)
