"""The door of the gRPC API: without an API key, nothing is served but health."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_status import rpc_status

from gateway.callers.caller import let_in
from gateway.callers.key_file import KeyFile
from specdec.errors import KeyRefused
from specdec.serving.status import rich_status

_HEALTH = "/grpc.health.v1.Health/"

Handler = Any

_log = structlog.get_logger()


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a known key as UNAUTHENTICATED, before their messages are read; health is open to all."""

    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if not handler_call_details.method.startswith(_HEALTH):
            metadata = handler_call_details.invocation_metadata or ()
            try:
                let_in(self._keys.key_of(value for name, value in metadata if name == "authorization"))
            except KeyRefused as error:
                return grpc.stream_stream_rpc_method_handler(partial(_refuse, error))
        return await continuation(handler_call_details)


async def _refuse(error: KeyRefused, requests: Any, context: Any) -> None:
    _log.info("rpc_refused", reason=error.reason, message=error.message, peer=context.peer())
    await context.abort_with_status(rpc_status.to_status(rich_status(error)))
