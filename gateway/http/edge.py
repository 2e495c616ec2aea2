"""Outermost layers of every HTTP request: its id, log line and metrics, and the checks before it is read.

The checks are API keys, and for browsers the origin, the host name and the media type.
"""

import re
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from ipaddress import ip_address

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from gateway.callers.caller import called_from, let_in
from gateway.callers.key_file import KeyFile
from gateway.http.page import is_of_page
from gateway.http.replies.problems import CLIENT_GONE, MESSAGES, error_response, on_error
from gateway.metrics import GatewayMetrics
from gateway.request import new_id
from specdec.errors import HostRefused, InternalError, KeyRefused, MediaTypeRefused, SpecdecError
from specdec.serving.rpc.interceptors import GOOD_REQUEST_ID, logged_id
from specdec.serving.telemetry.spans import TraceSpan
from specdec.serving.telemetry.tracing import served_span

_JSON = "application/json"
OPEN: Collection[str] = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Paths that need no key, in addition to the page. All other paths need one, even if they do not exist."""

_log = structlog.get_logger()


class Edge:
    """Outermost layer: gives every request an id, counts it, and answers it even after an unexpected exception.

    The `AsyncExitStack` in a request's state under the name `at_end` is closed after the answer.
    """

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
                async with AsyncExitStack() as scope["state"]["at_end"]:
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


class Door:
    """Admits calls with a known key, and answers others with 401 before reading their body."""

    def __init__(self, app: ASGIApp, keys: KeyFile) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN and not is_of_page(scope["path"]):
            request = Request(scope)
            try:
                given = request.headers.getlist("authorization")
                anthropic = [f"Bearer {key}" for key in request.headers.getlist("x-api-key")]  # its clients' header
                let_in(self._keys.key_of(given or anthropic))
            except KeyRefused as error:
                response = await on_error(request, error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BrowserGuard:
    """Refuses requests that only a foreign web page would send (DNS rebinding, cross-site requests)."""

    def __init__(self, app: ASGIApp, names: Collection[str] | None) -> None:
        """Accept any host name if `names` is None; otherwise names of this machine and `names`."""
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._mistake(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        response = await on_error(Request(scope), error)
        await response(scope, receive, send)

    def _mistake(self, scope: Scope) -> SpecdecError | None:
        headers = Headers(scope=scope)
        if self._names is not None and not is_local(headers.get("host", ""), self._names):
            return HostRefused("this gateway answers to names of its own machine; the setting `hosts` names others")
        if "origin" in headers and scope["method"] == "POST" and not _is_json(headers.get("content-type", "")):
            return MediaTypeRefused(f"the content type of what a page sends must be {_JSON}")
        return None


def is_local(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine: a loopback address, a name without a dot, or one of `names`.

    Public DNS has no names without a dot, so no foreign page can have one. Clients other than browsers may send no
    name.
    """
    name = _without_port(host).lower().rstrip(".")
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return "." not in name or name.endswith(".localhost") or name in names


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (":" not in name or name.endswith("]")) else host


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == _JSON or (kind.startswith("application/") and kind.endswith("+json"))
