"""Wraps every RPC of a server: puts its ids into the log, turns errors into statuses, and logs its end."""

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
from specdec.serving.telemetry.tracing import served_span

GOOD_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""A request id of a caller that is used as it is; any other is replaced."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_PUBLIC = "/specdec.gateway."
"""What the methods that callers of the system call begin with; services look at each other all the time."""

_log = structlog.get_logger()


class ErrorInterceptor(HandlerInterceptor):
    """Turns a SpecdecError that a servicer raises into a status; every other exception is a bug, which is logged."""

    def changed(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        around = partial(_observed_rpc, details.method)
        return rebuilt(handler, handler.request_deserializer, handler.response_serializer, around=around)


@asynccontextmanager
async def _observed_rpc(method: str, context: Context) -> AsyncIterator[None]:
    """One RPC: its ids are in every event of the log, an error ends it with a status, and its end is logged."""
    metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
    with ObservedCall(method, metadata) as call:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where any error becomes a status
            await context.abort_with_status(rpc_status.to_status(call.status(error)))


def logged_id(given: str) -> str:
    """A request id of a caller as logs have it: a UUID as it is, any other as a hash, since it may be a secret."""
    return given if _UUID.fullmatch(given) else f"sha256:{hashlib.sha256(given.encode()).hexdigest()[:16]}"


class ObservedCall:
    """One call, inside a context: its ids are in every event of the log, a trace has it, and its end is logged."""

    def __init__(self, method: str, metadata: Mapping[str, str]) -> None:
        """Make the scope of a call.

        Args:
            method: name of the RPC, as in `/specdec.verifier.v1.VerifierService/Generate`.
            metadata: of the call, with its request id and trace headers.
        """
        given = metadata.get("x-request-id", "")
        self._request_id = given if GOOD_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._public = method.startswith(_PUBLIC)
        public_id = self._public and self._request_id == given
        self._logged_id = logged_id(given) if public_id else self._request_id
        self._method = method
        self._metadata = metadata
        self._code = "OK"
        self._started = time.perf_counter()
        self._scope = ExitStack()

    def __enter__(self) -> Self:
        name = self._method.removeprefix("/")
        self._scope.enter_context(bound_contextvars(request_id=self._logged_id, rpc=self._method))
        self._scope.callback(self._log_end)
        self._span = self._scope.enter_context(served_span(name, self._metadata, begins=self._public))
        self._span.describe({"rpc.system.name": "grpc", "rpc.method": name})
        return self

    def __exit__(self, *exception: object) -> None:
        self._scope.close()

    def status(self, error: Exception) -> status_pb2.Status:
        """The status of the error that ends the call, which is logged."""
        self._span.fail(error)
        status = _status(error, self._request_id)
        self._code = code_pb2.Code.Name(status.code)
        return status

    def _log_end(self) -> None:
        _log.debug("rpc_ended", code=self._code, seconds=round(time.perf_counter() - self._started, 6))


def _status(error: Exception, request_id: str) -> status_pb2.Status:
    if isinstance(error, SpecdecError):
        log = _log.warning if status_of(error).http >= 500 else _log.info
        log("rpc_refused", **logged_error(error))
        return rich_status(error, request_id)
    _log.error("rpc_failed", exc_info=error)
    return rich_status(InternalError(f"internal error, request id {request_id}"), request_id)
