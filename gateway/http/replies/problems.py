"""Errors in OpenAI's format, and the outermost layer of every HTTP request: its id, log line and metrics."""

import math
import re
import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from gateway.callers.caller import called_from
from gateway.http.replies.objects import ErrorBody, ErrorDetail
from gateway.metrics import GatewayMetrics
from gateway.request import new_id
from specdec.errors import (
    InternalError,
    KeyRefused,
    RateLimited,
    RequestError,
    RouteNotFound,
    SessionBusy,
    SpecdecError,
    TurnConflict,
)
from specdec.serving.rpc.interceptors import GOOD_REQUEST_ID, logged_id
from specdec.serving.rpc.status import logged_error, status_of
from specdec.serving.telemetry.spans import TraceSpan
from specdec.serving.telemetry.tracing import served_span

MESSAGES = "/v1/messages"
"""Path prefix of Anthropic's API, whose errors use its format."""
CLIENT_GONE = 499
"""Status of a request whose client disconnected; used only in metrics and logs."""

_log = structlog.get_logger()


def error_body(error: SpecdecError) -> ErrorBody:
    """Return OpenAI's error object."""
    shown = status_of(error)
    param = error.param if isinstance(error, RequestError) else ""
    return ErrorBody(error=ErrorDetail(message=error.message, type=shown.type, param=param or None, code=shown.code))


def error_response(error: SpecdecError, *, anthropic: bool = False) -> Response:
    """Return the response to a request that failed before any part of an answer was sent."""
    shown = status_of(error)
    headers = {"retry-after": f"{math.ceil(shown.retry_after)}"} if shown.retry_after else {}
    if shown.http == 409 and not _mended_by_retry(error):
        headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's clients repeat every other 409
    match error:
        case KeyRefused():
            headers["www-authenticate"] = "Bearer"
        case RateLimited():
            headers |= error.headers
    body = anthropic_error(error) if anthropic else error_body(error).model_dump()
    return JSONResponse(body, status_code=shown.http, headers=headers)


def _mended_by_retry(error: SpecdecError) -> bool:
    """Whether a retry can succeed after a conflict, because the session may become idle."""
    return isinstance(error, SessionBusy) and not isinstance(error, TurnConflict)


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(error: SpecdecError) -> dict[str, Any]:
    """Return Anthropic's error object, with the fields of OpenAI's."""
    status = status_of(error).http
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": error_body(error).error.model_dump() | {"type": kind}}


async def on_error(request: Request, error: Exception) -> Response:
    """Answer a SpecdecError."""
    if not isinstance(error, SpecdecError):
        raise error
    log = _log.warning if status_of(error).http >= 500 else _log.info
    log("request_refused", **logged_error(error))
    _log.debug("refusal", message=error.message)
    return error_response(error, anthropic=request.url.path.startswith(MESSAGES))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a path or method that does not exist."""
    if not isinstance(error, HTTPException):
        raise error
    what = "no such path" if error.status_code == 404 else f"{request.method} is not allowed on"
    refused = RouteNotFound(f"{what} {request.url.path}")
    body = anthropic_error(refused) if request.url.path.startswith(MESSAGES) else error_body(refused).model_dump()
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


class Edge:
    """Outermost layer: gives every request an id, counts it, and answers it even after an unexpected exception."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = re.sub("/+", "/", scope["path"]).rstrip("/") or "/"  # base URLs are written with slashes or not
        given = Headers(scope=scope).get("x-request-id", "")
        good = GOOD_REQUEST_ID.fullmatch(given) is not None
        request_id = given if good else new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        called_from((scope.get("client") or ("",))[0])
        status, began = 0, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        traced = served_span(scope["method"], Headers(scope=scope), begins=scope["method"] == "POST")
        with bound_contextvars(request_id=logged_id(given) if good else request_id), traced as span:
            try:
                await self._app(scope, receive, send_with_id)
            except ClientDisconnect:
                _log.debug("client_gone")
            except Exception as error:  # noqa: BLE001 - a bug is answered like every other error
                _log.error("request_failed", exc_info=error)
                if not status:
                    failure = InternalError(f"internal error, request id {request_id}")
                    response = error_response(failure, anthropic=scope["path"].startswith(MESSAGES))
                    await response(scope, receive, send_with_id)
            finally:
                self._count(scope, status, time.perf_counter() - began)
                _describe(span, scope, status)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(route, str(status or CLIENT_GONE)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        _log.debug("request_ended", route=route, status=status or CLIENT_GONE, seconds=round(seconds, 6))


def _describe(span: TraceSpan, scope: Scope, status: int) -> None:
    method, route = scope["method"], getattr(scope.get("route"), "path", "")
    failed = {"error.type": str(status)} if status >= 500 else {}
    told = {"http.request.method": method, "http.route": route, "http.response.status_code": status or CLIENT_GONE}
    span.describe(told | failed, f"{method} {route}".strip())
