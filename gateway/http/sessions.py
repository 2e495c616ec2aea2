"""The endpoints that name a session or a generation: `/v1/sessions` and `/v1/generations`."""

from functools import partial
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import WithJsonSchema

from gateway.callers.caller import calling_tenant
from gateway.http import openapi
from gateway.http.replies import answers as cursor
from gateway.http.replies.answers import json_response, streamed, while_connected, writer_for
from gateway.http.replies.objects import Completion
from gateway.http.requests.bodies import BodyReader
from gateway.http.requests.fields import Name
from gateway.http.requests.session_bodies import (
    Cancelled,
    Deleted,
    SessionBody,
    SessionPage,
    SessionReply,
    session_reply,
)
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import DEFAULT_PAGE, MAX_PAGE, UserSessions
from specdec.errors import FieldInvalid

_Limit = Annotated[str | None, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_PAGE})]
_Number = Annotated[str | None, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 999_999_999})]
"""A query parameter, which `_parse` reads, so that a mistake is refused like every other."""


def mount(app: FastAPI, services: Services, bodies: BodyReader) -> None:
    """Add the routes."""
    routes = _Routes(services, bodies)
    openapi.add(app, "POST /v1/sessions", routes.create, SessionReply, SessionBody)
    openapi.add(app, "GET /v1/sessions", routes.page, SessionPage)
    openapi.add(app, "GET /v1/sessions/{id}", routes.get, SessionReply)
    openapi.add(app, "DELETE /v1/sessions/{id}", routes.delete, Deleted)
    openapi.add(app, "GET /v1/generations/{id}/events", routes.events, Completion, events=True)
    openapi.add(app, "DELETE /v1/generations/{id}", routes.cancel, Cancelled)


class _Routes:
    """The endpoints; each method is one."""

    def __init__(self, services: Services, bodies: BodyReader) -> None:
        self._services = services
        self._bodies = bodies
        self._sessions = UserSessions(services)
        self._generator = Generator(services)

    async def create(self, request: Request) -> Response:
        """Create a session."""
        body = await self._bodies.read(request, SessionBody)
        key = cursor.idempotency_key(request.headers)
        session = await self._sessions.create(calling_tenant(body.user or ""), body.model or "", body.ttl, key)
        return json_response(session_reply(session))

    async def get(self, id: str, user: Name = "") -> Response:
        """Describe one session."""
        return json_response(session_reply(await self._sessions.get(id, calling_tenant(user))))

    async def page(self, user: Name = "", limit: _Limit = None, after: str = "") -> Response:
        """List the sessions of a user, newest first."""
        size = _parse("limit", limit, DEFAULT_PAGE)
        data = [session_reply(session) for session in await self._sessions.page(calling_tenant(user), size, after)]
        page = SessionPage(data=data, has_more=len(data) == size, last_id=data[-1].id if data else None)
        return json_response(page)

    async def delete(self, id: str, user: Name = "") -> Response:
        """Delete a session."""
        await self._sessions.delete(id, calling_tenant(user))
        return json_response(Deleted(id=id))

    async def events(self, request: Request, id: str, user: Name = "", received: _Number = None) -> Response:
        """Stream a generation from where the caller stopped reading."""
        count = _parse("received", received, 0)
        after = cursor.received(request.headers, id) or ((count,) if count else ())
        stream = self._generator.resume(id, calling_tenant(user), after)
        as_begun = partial(writer_for, answer_format=None)
        return await while_connected(request, streamed(stream, self._services, as_begun, after, ids=True))

    async def cancel(self, id: str, user: Name = "") -> Response:
        """End a generation and keep its committed tokens."""
        return json_response(Cancelled(id=id, cancelled=await self._generator.cancel(id, calling_tenant(user))))


def _parse(name: str, given: str | None, default: int) -> int:
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise FieldInvalid(f"{name} must be a whole number, not negative", name)
    return int(given)
