"""Checks before a request is read: API keys, and for browsers the origin, the host name and the media type."""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.callers.caller import let_in
from gateway.callers.key_file import KeyFile
from gateway.http.page import is_of_page
from gateway.http.replies.problems import on_error
from specdec.errors import HostRefused, KeyRefused, MediaTypeRefused, SpecdecError

_JSON = "application/json"
OPEN: Collection[str] = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Paths that need no key, in addition to the page. All other paths need one, even if they do not exist."""


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
