"""Rejection of gRPC messages that are too large, are not protobuf, or contain text that is not UTF-8.

If a caller declares checksums, they are verified here and added to the responses.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import FieldInvalid, MessageCorrupted, MessageTooLarge
from specdec.serving.rpc import checksum

# gRPC's handler types cover only synchronous servers.
Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]

_INVALID = "the message is not valid: its bytes are not protobuf, or a string in it is not UTF-8"


class HandlerInterceptor(grpc.aio.ServerInterceptor, ABC):
    """Wraps the handlers of specdec services. Health and reflection handle their own errors."""

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
        """Return the handler that replaces this one."""


class DecodeInterceptor(HandlerInterceptor):
    """Raises a SpecdecError where gRPC would fail without a reason. It runs inside ErrorInterceptor."""

    def __init__(self, max_bytes: int) -> None:
        """Create the interceptor; messages over `max_bytes` are refused."""
        self._max_bytes = max_bytes

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        sealed = checksum.is_declared(details.invocation_metadata)
        decode, encode = self._lenient(handler.request_deserializer, sealed), handler.response_serializer
        check = _checked_stream if handler.request_streaming else checksum.received
        return rebuilt(handler, decode, checksum.encoder(encode) if sealed else encode, check=check)

    def _lenient(self, decode: Callable[[bytes], Any], sealed: bool) -> Callable[[bytes], Any]:
        """Return a deserializer that returns an error in place of the message, since it must not raise."""

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
    parse: Callable[[Any], Awaitable[Any]] | None = None,
    check: Callable[[Any], Any] = lambda request: request,
    around: Callable[[Context], AbstractAsyncContextManager[Any]] = nullcontext,
) -> Handler:
    """Return a handler of the same kind that applies `check` to each request and runs calls inside `around`.

    `parse` finishes what `decode` returned, in the task of the call; only for calls with a single request.
    """
    ways = (handler.request_streaming, handler.response_streaming)
    kind = "_".join("stream" if streams else "unary" for streams in ways)
    inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")

    async def unary(request: Any, context: Context) -> Any:
        async with around(context):
            parsed = await parse(request) if parse else request
            return await inner(check(parsed), context)

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        async with around(context):
            parsed = await parse(request) if parse else request
            async for response in inner(check(parsed), context):
                yield response

    return make(stream if handler.response_streaming else unary, decode, encode)


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the messages. Raise an error that stands in place of a message."""
    async for request in requests:
        yield checksum.received(request)
