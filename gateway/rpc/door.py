"""Authentication of the gRPC API: identifies callers, and serves only health checks without an API key."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf import descriptor_pool

from gateway.callers.caller import called_from, let_in
from gateway.callers.key_file import KeyFile
from gateway.rpc.parts import MAX_PARTS, overfull_field
from specdec.errors import FieldInvalid, KeyRefused
from specdec.serving.rpc.access import DoorInterceptor
from specdec.serving.rpc.decoding import Context, Handler, HandlerInterceptor, rebuilt
from specdec.serving.rpc.interceptors import abort, request_id_in
from specdec.serving.rpc.status import rich_status

_log = structlog.get_logger()


class CallerInterceptor(HandlerInterceptor):
    """Sets the client address of each call in its task, and refuses messages of too many parts unparsed."""

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        decode = _bounded(handler.request_deserializer, details.method)
        return rebuilt(handler, decode, handler.response_serializer, around=_called)


def _bounded(decode: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
    """Return a deserializer that returns an error in place of a message of too many parts."""
    service, _, name = method.removeprefix("/").partition("/")
    kind = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type

    def decoded(raw: bytes) -> Any:
        if (param := overfull_field(raw, kind)) is not None:
            return FieldInvalid(f"{param}: the message has over {MAX_PARTS} parts", param)
        return decode(raw)

    return decoded


@asynccontextmanager
async def _called(context: Context) -> AsyncIterator[None]:
    called_from(host_of(context.peer()))
    yield


def host_of(peer: str) -> str:
    """The host of a peer as gRPC writes it, such as `ipv4:192.0.2.1:1234` or `ipv6:%5B::1%5D:1234`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


class KeyInterceptor(DoorInterceptor):
    """Refuses calls without a known key as UNAUTHENTICATED."""

    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys

    def refusal(self, given: Sequence[str | bytes]) -> Handler | None:
        try:
            let_in(self._keys.key_of(given))
        except KeyRefused as error:
            return partial(_refuse, error)
        return None


async def _refuse(error: KeyRefused, requests: Any, context: Any) -> None:
    _log.info("rpc_refused", reason=error.reason, peer=context.peer())
    request_id = request_id_in({name: str(value) for name, value in context.invocation_metadata() or ()})
    await abort(context, rich_status(error, request_id), request_id)
