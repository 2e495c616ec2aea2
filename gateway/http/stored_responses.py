"""The endpoints that name a response, `/v1/responses/{id}`: a turn of a session whose request said how it is shown."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.callers.caller import calling_tenant
from gateway.http import openapi
from gateway.http.replies.answers import json_response, while_connected, whole
from gateway.http.requests.fields import Name
from gateway.http.responses.replies import DeletedResponse, ResponseReply, ResponsesWriter
from gateway.http.responses.stored import stored_body, turn_name, unknown_response
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import UserSessions
from gateway.turns.turn import Turn
from specdec.errors import SessionNotFound, TurnConflict


def mount(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    routes = _Routes(services)
    openapi.add(app, "GET /v1/responses/{id}", routes.get, ResponseReply)
    openapi.add(app, "DELETE /v1/responses/{id}", routes.delete, DeletedResponse)


class _Routes:
    """The endpoints; each method is one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)
        self._sessions = UserSessions(services)

    async def get(self, request: Request, id: str, user: Name = "") -> Response:
        """Show a response; one that is being generated is waited for."""
        turn = Turn.named(turn_name(id), calling_tenant(user))
        asked = stored_body(await self._generator.answer_format(turn))
        events = self._generator.resume(turn.name, turn.tenant)
        answer = whole(events, self._services, lambda started, _: ResponsesWriter(started, asked))
        return await while_connected(request, answer)

    async def delete(self, id: str, user: Name = "") -> Response:
        """Delete a response, the last of its session, with those that it continues."""
        tenant = calling_tenant(user)
        turn = Turn.named(turn_name(id), tenant)
        stored_body(await self._generator.answer_format(turn))
        try:
            last = (await self._sessions.get(turn.session_id, tenant)).turn
            if last != turn.number:
                raise TurnConflict(
                    f"the response was continued: delete resp_{turn.session_id}-{last}, which ends with it"
                )
            await self._sessions.delete(turn.session_id, tenant)
        except SessionNotFound as error:
            raise unknown_response() from error
        return json_response(DeletedResponse(id=id))
