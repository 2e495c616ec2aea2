"""The endpoints that name a session or a generation: `/v1/sessions` and `/v1/generations`."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.http import answers, openapi
from gateway.http.answer_format import AnswerFormat
from gateway.http.answers import json_response
from gateway.http.body import parse_body
from gateway.http.cursor import idempotency_key, received
from gateway.http.openapi import Route
from gateway.http.replies import Completion
from gateway.http.session_replies import (
    Cancelled,
    Deleted,
    SessionBody,
    SessionPage,
    SessionReply,
    session_reply,
)
from gateway.http.writers import Writer, writer_for
from gateway.turns.events import Started
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import DEFAULT_PAGE, UserSessions
from specdec.errors import FieldInvalid


def mount(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    routes = _Routes(services)
    events = "/v1/generations/{id}/events"
    openapi.add(
        app,
        Route("POST", "/v1/sessions", routes.create, SessionReply, SessionBody),
        Route("GET", "/v1/sessions", routes.page, SessionPage, query=("user", "limit", "after")),
        Route("GET", "/v1/sessions/{id}", routes.get, SessionReply, query=("user",)),
        Route("DELETE", "/v1/sessions/{id}", routes.delete, Deleted, query=("user",)),
        Route("GET", events, routes.events, Completion, query=("user", "received"), events=True),
        Route("DELETE", "/v1/generations/{id}", routes.cancel, Cancelled, query=("user",)),
    )


class _Routes:
    """The endpoints; each method is one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sessions = UserSessions(services)
        self._generator = Generator(services)

    async def create(self, request: Request) -> Response:
        """Create a session."""
        body = SessionBody.parse(await parse_body(request, self._services.settings.max_body_bytes))
        key = idempotency_key(request.headers)
        session = await self._sessions.create(body.user or "", body.model or "", body.ttl, key)
        return json_response(session_reply(session))

    async def get(self, request: Request) -> Response:
        """Describe one session."""
        session = await self._sessions.get(request.path_params["id"], _user(request))
        return json_response(session_reply(session))

    async def page(self, request: Request) -> Response:
        """List the sessions of a user, newest first."""
        limit = _number(request, "limit", DEFAULT_PAGE)
        found = await self._sessions.page(_user(request), limit, request.query_params.get("after", ""))
        data = [session_reply(session) for session in found]
        page = SessionPage(data=data, has_more=len(data) == limit, last_id=data[-1].id if data else None)
        return json_response(page)

    async def delete(self, request: Request) -> Response:
        """Delete a session."""
        session_id = request.path_params["id"]
        await self._sessions.delete(session_id, _user(request))
        return json_response(Deleted(id=session_id))

    async def events(self, request: Request) -> Response:
        """Stream a generation from where the caller stopped reading."""
        name = request.path_params["id"]
        count = _number(request, "received", 0)
        after = received(request.headers, name) or ((count,) if count else ())
        stream = self._generator.resume(name, _user(request), after)

        def make_writer(started: Started) -> Writer:
            answer_format = AnswerFormat.parse(started.header.answer_format)
            return writer_for(started, answer_format, self._services.tokenizer.token_bytes)

        return await answers.streamed(request, stream, make_writer, self._services.settings.ping, after)

    async def cancel(self, request: Request) -> Response:
        """End a generation with what is committed."""
        name = request.path_params["id"]
        cancelled = await self._generator.cancel(name, _user(request))
        return json_response(Cancelled(id=name, cancelled=cancelled))


def _user(request: Request) -> str:
    return request.query_params.get("user", "")


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise FieldInvalid(f"{name} must be a whole number, not negative", name)
    return int(given)
