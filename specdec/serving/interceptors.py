"""Wraps every RPC of a server: puts its ids into the log, turns errors into statuses, and logs its end."""

import hashlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import grpc
import structlog
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status
from structlog.contextvars import bound_contextvars

from specdec.errors import InternalError, SpecdecError
from specdec.serving.decoding import Context, Handler, HandlerInterceptor, rebuilt
from specdec.serving.status import logged_error, rich_status, status_of
from specdec.serving.tracing import served_span

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
    metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}

    async def abort(status: status_pb2.Status) -> None:
        await context.abort_with_status(rpc_status.to_status(status))

    async with observed(method, metadata, abort):
        yield


def logged_id(given: str) -> str:
    """A request id of a caller as logs have it: a UUID as it is, any other as a hash, since it may be a secret."""
    return given if _UUID.fullmatch(given) else f"sha256:{hashlib.sha256(given.encode()).hexdigest()[:16]}"


@asynccontextmanager
async def observed(
    method: str, metadata: Mapping[str, str], fail: Callable[[status_pb2.Status], Awaitable[None]]
) -> AsyncIterator[None]:
    """One call: its ids are in every event of the log, an error ends it with a status, and its end is logged.

    Args:
        method: name of the RPC, as in `/specdec.verifier.v1.VerifierService/Generate`.
        metadata: of the call, with its request id and trace headers.
        fail: takes the status of the error that ends the call.
    """
    given = metadata.get("x-request-id", "")
    request_id = given if GOOD_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    public = method.startswith(_PUBLIC)
    logged = logged_id(request_id) if public and request_id == given else request_id
    started, code = time.perf_counter(), "OK"
    traced = served_span(method.removeprefix("/"), metadata, begins=public)
    with bound_contextvars(request_id=logged, rpc=method):
        try:
            with traced as span:
                span.describe({"rpc.system.name": "grpc", "rpc.method": method.removeprefix("/")})
                yield
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where any error becomes a status
            status = _status(error, request_id)
            code = code_pb2.Code.Name(status.code)
            await fail(status)
        finally:
            _log.debug("rpc_ended", code=code, seconds=round(time.perf_counter() - started, 6))


def _status(error: Exception, request_id: str) -> status_pb2.Status:
    if isinstance(error, SpecdecError):
        log = _log.warning if status_of(error).http >= 500 else _log.info
        log("rpc_refused", **logged_error(error))
        return rich_status(error, request_id)
    _log.error("rpc_failed", exc_info=error)
    return rich_status(InternalError(f"internal error, request id {request_id}"), request_id)
