"""The door of the gRPC API: without an API key, nothing is served but health."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from grpc_status import rpc_status

from gateway.callers.caller import let_in
from gateway.callers.key_file import KeyFile
from specdec.errors import KeyRefused
from specdec.serving.access import DoorInterceptor, Handler
from specdec.serving.status import rich_status

_log = structlog.get_logger()


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
    await context.abort_with_status(rpc_status.to_status(rich_status(error)))
