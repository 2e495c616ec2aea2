"""Refuses gRPC messages that are not valid protobuf, or have a string that is not UTF-8, like any other bad input."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import FieldInvalid

Handler = Any
Context = grpc.aio.ServicerContext[Any, Any]


class DecodeInterceptor(grpc.aio.ServerInterceptor):
    """Answers with FieldInvalid where grpc itself would fail without a reason."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or not handler_call_details.method.startswith("/specdec."):
            return handler
        decode = _lenient(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _stream(handler.unary_stream), decode, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary), decode, handler.response_serializer)


def _lenient(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer cannot answer with an error: it returns the error in place of the message."""

    def decoded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except (DecodeError, UnicodeDecodeError):
            return FieldInvalid("the message is not valid: its bytes are not protobuf, or a string in it is not UTF-8")

    return decoded


def _unary(inner: Callable[[Any, Context], Awaitable[Any]]) -> Any:
    async def checked(request: Any, context: Context) -> Any:
        if isinstance(request, FieldInvalid):
            raise request
        return await inner(request, context)

    return checked


def _stream(inner: Callable[[Any, Context], AsyncIterator[Any]]) -> Any:
    async def checked(request: Any, context: Context) -> AsyncIterator[Any]:
        if isinstance(request, FieldInvalid):
            raise request
        async for response in inner(request, context):
            yield response

    return checked
