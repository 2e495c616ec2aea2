"""Authentication of the gRPC API: identifies callers, and serves only health checks without an API key."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf import descriptor_pool

from gateway.admission import FairThread
from gateway.callers.caller import called_from, calling_tenant, let_in, place_share
from gateway.callers.key_file import KeyFile
from gateway.rpc.parts import MAX_PARTS, QUICK_BYTES, overfull_field
from specdec.errors import FieldInvalid, KeyRefused, QueueFull
from specdec.serving.rpc.access import DoorInterceptor
from specdec.serving.rpc.decoding import Context, Handler, HandlerInterceptor, rebuilt
from specdec.serving.rpc.interceptors import abort, request_id_in
from specdec.serving.rpc.status import rich_status

_WAITING = 64 * 2**20
"""Most bytes of large messages that wait to be parsed."""
_log = structlog.get_logger()


class CallerInterceptor(HandlerInterceptor):
    """Sets the client address of each call in its task, and parses large messages on a thread, callers in turn.

    A message of too many parts is refused unparsed.
    """

    def __init__(self) -> None:
        self._thread = FairThread("large messages", _WAITING)

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        service, _, name = details.method.removeprefix("/").partition("/")
        kind = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type
        decode = handler.request_deserializer

        def decoded(raw: bytes) -> Any:
            return decode(raw) if len(raw) <= QUICK_BYTES else _Large(raw)

        async def parsed(message: Any) -> Any:
            if not isinstance(message, _Large):
                return message
            try:
                read = partial(_bounded, decode, message.raw, kind)
                return await self._thread.run(place_share(calling_tenant()), read, len(message.raw))
            except QueueFull as error:
                return error  # in place of the message, as other errors of messages

        return rebuilt(handler, decoded, handler.response_serializer, parse=parsed, around=_called)


class _Large(NamedTuple):
    """Message that is not parsed yet."""

    raw: bytes


def _bounded(decode: Callable[[bytes], Any], raw: bytes, kind: Any) -> Any:
    """Return a parsed message, or an error in place of one of too many parts."""
    if (param := overfull_field(raw, kind)) is not None:
        return FieldInvalid(f"{param}: the message has over {MAX_PARTS} parts", param)
    return decode(raw)


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
