"""The routes that name a session or a generation: `/v1/sessions`, `/v1/generations`."""

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from gateway.http import answers, openapi
from gateway.http.body import parse_body
from gateway.http.cursor import idempotency_key, received
from gateway.http.replies import Completion
from gateway.http.session_replies import (
    Cancelled,
    Deleted,
    SessionBody,
    SessionPage,
    SessionReply,
    session_reply,
)
from gateway.http.shape import Shape
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import SessionDesk
from specdec.errors import FieldInvalid

PAGE = 20
"""Sessions on a page when the caller does not say."""


def mount(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    routes = _Routes(services)
    openapi.post(app, "/v1/sessions", routes.create, SessionBody, SessionReply)
    openapi.get(app, "/v1/sessions", routes.page, SessionPage, query=("user", "limit", "after"))
    openapi.get(app, "/v1/sessions/{id}", routes.get, SessionReply, query=("user",))
    openapi.delete(app, "/v1/sessions/{id}", routes.delete, Deleted, query=("user",))
    openapi.get(app, "/v1/generations/{id}/events", routes.events, Completion, query=("user", "received"), events=True)
    openapi.delete(app, "/v1/generations/{id}", routes.cancel, Cancelled, query=("user",))


class _Routes:
    """One method a route."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._desk = SessionDesk(services)
        self._generator = Generator(services)

    async def create(self, request: Request) -> Response:
        """Make a session."""
        body = SessionBody.parse(await parse_body(request, self._services.settings.max_body_bytes))
        key = idempotency_key(request.headers)
        session = await self._desk.create(body.user or "", body.model or "", body.ttl, key)
        return _json(session_reply(session))

    async def get(self, request: Request) -> Response:
        """One session."""
        session = await self._desk.get(request.path_params["id"], _user(request))
        return _json(session_reply(session))

    async def page(self, request: Request) -> Response:
        """The sessions of a user, newest first."""
        limit = _number(request, "limit", PAGE)
        found = await self._desk.page(_user(request), limit, request.query_params.get("after", ""))
        data = [session_reply(session) for session in found]
        page = SessionPage(data=data, has_more=len(data) == limit, last_id=data[-1].id if data else None)
        return _json(page)

    async def delete(self, request: Request) -> Response:
        """Forget a session."""
        session_id = request.path_params["id"]
        await self._desk.delete(session_id, _user(request))
        return _json(Deleted(id=session_id))

    async def events(self, request: Request) -> Response:
        """The event stream of a generation, from where the caller stopped reading."""
        name = request.path_params["id"]
        count = _number(request, "received", 0)
        after = received(request.headers, name) or ((count,) if count else ())
        stream = self._generator.resume(name, _user(request), after)
        ping = self._services.settings.ping
        piece = self._services.tokenizer.piece
        return await answers.streamed(
            request, stream, lambda started: Shape.parse(started.form).writer(started, piece), ping, after
        )

    async def cancel(self, request: Request) -> Response:
        """End a generation with what is committed."""
        name = request.path_params["id"]
        cancelled = await self._generator.cancel(name, _user(request))
        return _json(Cancelled(id=name, cancelled=cancelled))


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _user(request: Request) -> str:
    return request.query_params.get("user", "")


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise FieldInvalid(f"{name} must be a whole number, not negative", name)
    return int(given)
