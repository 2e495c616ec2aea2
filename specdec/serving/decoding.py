"""Refuses gRPC messages that are too large, are no protobuf, or have text that is not UTF-8, like any bad input.

Where a caller declares checksums, they are checked here, and the answers get theirs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import FieldInvalid, MessageCorrupted, MessageTooLarge, RequestError
from specdec.serving import checksum

Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]

_INVALID = "the message is not valid: its bytes are not protobuf, or a string in it is not UTF-8"


class DecodeInterceptor(grpc.aio.ServerInterceptor):
    """Raises an error of ours where grpc itself would fail without a reason; it runs inside ErrorInterceptor."""

    def __init__(self, max_bytes: int) -> None:
        """Refuse messages of more than `max_bytes`."""
        self._max_bytes = max_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/specdec."):
            return handler
        sealed = checksum.is_declared(handler_call_details.invocation_metadata)
        decode, encode = self._lenient(handler.request_deserializer, sealed), handler.response_serializer
        if sealed:
            encode = checksum.encoder(encode)
        check = _checked_stream if handler.request_streaming else _checked
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            return rebuilt(handler, _stream(inner, check), decode, encode)
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        return rebuilt(handler, _unary(inner, check), decode, encode)

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
    handler: Handler, behaviour: Callable[..., Any], decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> Handler:
    """A handler of the same kind with another behaviour, deserializer and serializer."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behaviour, decode, encode)


def _unary(inner: Callable[[Any, Context], Awaitable[Any]], check: Callable[[Any], Any]) -> Any:
    async def checked(request: Any, context: Context) -> Any:
        return await inner(check(request), context)

    return checked


def _stream(inner: Callable[[Any, Context], AsyncIterator[Any]], check: Callable[[Any], Any]) -> Any:
    async def checked(request: Any, context: Context) -> AsyncIterator[Any]:
        async for response in inner(check(request), context):
            yield response

    return checked


def _checked(request: Any) -> Any:
    """The message; raises the error that stands in its place."""
    if isinstance(request, RequestError | MessageCorrupted):
        raise request
    return request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The messages; raises the error that stands in the place of one."""
    async for request in requests:
        yield _checked(request)
