"""Errors in OpenAI's and Anthropic's formats."""

import math
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.http.replies.objects import ErrorBody, ErrorDetail
from specdec.errors import (
    KeyRefused,
    RateLimited,
    RequestError,
    RouteNotFound,
    SessionBusy,
    SpecdecError,
    TurnConflict,
)
from specdec.serving.rpc.status import logged_error, status_of

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
