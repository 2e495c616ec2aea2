"""The door of the HTTP API: without an API key, nothing is served but the page, and what says whether all is well."""

from collections.abc import Collection

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.callers.caller import let_in
from gateway.callers.key_file import KeyFile
from gateway.http.page import is_of_page
from gateway.http.replies.problems import on_error
from specdec.errors import KeyRefused

OPEN: Collection[str] = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Paths that need no key, beside the page, which asks for one. All others need one, whether they exist or not."""


class Door:
    """Lets calls with a known key in, and answers others with 401 before anything of their body is read."""

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
