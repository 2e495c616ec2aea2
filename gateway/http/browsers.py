"""Keeps web pages of strangers away from a gateway that asks nobody for a key.

A page may send a form or a text to any address without being asked about it, and by a name that its own server gives to
this machine (DNS rebinding) it may also read the answers. So a body that a page sends must be JSON by its type, which a
browser asks about first, and a gateway on loopback is called by names of this machine alone.
"""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.replies.problems import on_error
from specdec.errors import HostRefused, MediaTypeRefused, SpecdecError

_JSON = "application/json"


class BrowserGuard:
    """Refuses what only a page of a stranger sends."""

    def __init__(self, app: ASGIApp, names: Collection[str] | None) -> None:
        """Take calls by any name where `names` is None, else by names of this machine and by these."""
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
    """Whether a Host header names this machine: by a loopback address, a name without a dot, or one of `names`.

    Names without a dot are in no public name server, so that no page of a stranger has one. Clients that are no
    browsers may send none.
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
