"""Page at `/`, served from static files of this package. Its policy forbids the browser to load other sources."""

from functools import partial
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from gateway.http.openapi import add_head

PREFIX = "/page/"
"""URL prefix of the page's files."""
_FOLDER = Path(__file__).with_name("static")
_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_SCRIPT = "text/javascript; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def mount(app: FastAPI) -> None:
    """Add the routes: `/`, and one for each file."""
    for file in sorted(_FOLDER.iterdir()):
        path = "/" if file.name == "index.html" else PREFIX + file.name
        endpoint = partial(_serve, file.read_bytes(), _TYPES.get(file.suffix, _SCRIPT))
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
        add_head(app, path, endpoint)


def is_of_page(path: str) -> bool:
    """Whether the path is the page or one of its files."""
    return path == "/" or path.startswith(PREFIX)


async def _serve(content: bytes, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers=_HEADERS)
