"""Wrapper of every RPC of a server: binds its ids to the log, converts errors to statuses, and logs its end."""

import hashlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Self

import grpc
import structlog
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status
from structlog.contextvars import bound_contextvars

from specdec.errors import InternalError, SpecdecError
from specdec.serving.rpc.decoding import Context, Handler, HandlerInterceptor, rebuilt
from specdec.serving.rpc.status import logged_error, rich_status, status_of
from specdec.serving.telemetry.request_ids import FIELD, HEADER
from specdec.serving.telemetry.tracing import served_span

GOOD_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Caller request ids that are used unchanged. Any other id is replaced."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_PUBLIC = "/specdec.gateway."
"""Prefix of the methods for callers of the system. Services poll each other all the time."""

_log = structlog.get_logger()


class ErrorInterceptor(HandlerInterceptor):
    """Converts a SpecdecError of a servicer to a status. Any other exception is a bug and is logged."""

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        around = partial(_observed_rpc, details.method)
        return rebuilt(handler, handler.request_deserializer, handler.response_serializer, around=around)


@asynccontextmanager
async def _observed_rpc(method: str, context: Context) -> AsyncIterator[None]:
    """Run one RPC: bind its ids to log events, end it with a status on error, and log its end."""
    metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
    with ObservedCall(method, metadata) as call:
        context.set_trailing_metadata(((HEADER, call.request_id),))
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the only place where errors become statuses
            await abort(context, call.status(error), call.request_id)


async def abort(context: Context, status: status_pb2.Status, request_id: str) -> None:
    """End a call with a status; the trailing metadata has the request id. Raises AbortError."""
    shown = rpc_status.to_status(status)
    await context.abort(shown.code, shown.details, (*shown.trailing_metadata, (HEADER, request_id)))


def request_id_in(metadata: Mapping[str, str]) -> str:
    """Return the request id that a caller chose, or a new one if there is none or it is malformed."""
    given = metadata.get(HEADER, "")
    return given if GOOD_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def logged_id(given: str) -> str:
    """Return a caller's request id for logs. Ids other than UUIDs are hashed, since they may be secrets."""
    return given if _UUID.fullmatch(given) else f"sha256:{hashlib.sha256(given.encode()).hexdigest()[:16]}"


class ObservedCall:
    """Context of one call: binds its ids to log events, records a trace span and logs its end."""

    def __init__(self, method: str, metadata: Mapping[str, str]) -> None:
        """Create the context of a call.

        Args:
            method: name of the RPC, as in `/specdec.verifier.v1.VerifierService/Generate`.
            metadata: metadata of the call, with its request id and trace headers.
        """
        given = metadata.get(HEADER, "")
        self.request_id = request_id_in(metadata)
        """Id of the request, as the answer has it."""
        self._public = method.startswith(_PUBLIC)
        public_id = self._public and self.request_id == given
        self._logged_id = logged_id(given) if public_id else self.request_id
        self._log = _log.info if given and not self._public else _log.debug
        """Function that logs the end; at `info` for a request, of which the gateway has an event of its own."""
        self._method = method
        self._metadata = metadata
        self._code = "OK"
        self._started = time.perf_counter()
        self._scope = ExitStack()

    def __enter__(self) -> Self:
        name = self._method.removeprefix("/")
        self._scope.enter_context(bound_contextvars(**{FIELD: self._logged_id}, rpc=self._method))
        self._scope.callback(self._log_end)
        self._span = self._scope.enter_context(served_span(name, self._metadata, begins=self._public))
        self._span.describe({"rpc.system.name": "grpc", "rpc.method": name})
        return self

    def __exit__(self, *exception: object) -> None:
        self._scope.close()

    def status(self, error: Exception) -> status_pb2.Status:
        """Return the status of the error that ends the call, and log it."""
        self._span.fail(error)
        status = _status(error, self.request_id)
        self._code = code_pb2.Code.Name(status.code)
        return status

    def _log_end(self) -> None:
        self._log("rpc_ended", code=self._code, seconds=round(time.perf_counter() - self._started, 6))


def _status(error: Exception, request_id: str) -> status_pb2.Status:
    if isinstance(error, SpecdecError):
        log = _log.warning if status_of(error).http >= 500 else _log.info
        log("rpc_refused", **logged_error(error))
        return rich_status(error, request_id)
    _log.error("rpc_failed", exc_info=error)
    return rich_status(InternalError(f"internal error, request id {request_id}"), request_id)
