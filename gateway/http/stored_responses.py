"""Responses that are shown again: `/v1/responses/{id}`, and items of an input that refer to them.

A response is a turn of a session whose request said how it is shown.
"""

import json
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.callers.caller import calling_tenant
from gateway.http import openapi
from gateway.http.replies.answers import json_response, while_connected, whole
from gateway.http.requests.fields import Name
from gateway.http.responses.body import ResponsesBody
from gateway.http.responses.replies import DeletedResponse, ResponseReply, ResponsesWriter
from gateway.http.responses.stored import stored_body, turn_name, unknown_response
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.events import Started
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import UserSessions
from gateway.turns.turn import Turn
from specdec.errors import FieldInvalid, GenerationNotFound, SessionExpired, SessionNotFound, TurnConflict

_ITEM = re.compile(r"[a-z]{2,3}_([0-9a-f]{32}-[1-9][0-9]{0,8})_[0-9]{1,9}")
"""The id of an output item, made of its turn's name and its position."""
_MOST = 128
"""Most responses that an input refers to; each costs a read of the session store."""


def mount(app: FastAPI, services: Services) -> None:
    """Add the routes."""
    routes = _Routes(services, StoredResponses(services))
    openapi.add(app, "GET /v1/responses/{id}", routes.get, ResponseReply)
    openapi.add(app, "DELETE /v1/responses/{id}", routes.delete, DeletedResponse)


class StoredResponses:
    """Reads responses from their turns."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)

    async def show(self, turn: Turn) -> Response:
        """Return the answer that a turn is; one that is being generated is waited for.

        Raises:
            GenerationNotFound: the turn is not one of a stored response.
        """
        asked = stored_body(await self._generator.answer_format(turn))
        events = self._generator.resume(turn.name, turn.tenant)

        def writer(started: Started, tokenizer: ModelTokenizer) -> ResponsesWriter:
            return ResponsesWriter(started, asked, tokenizer.token_bytes)

        return await whole(events, self._services, writer)

    async def instructs(self, body: ResponsesBody, kept: str) -> bool:
        """Whether the response that a request continues, if any, was asked for with other instructions.

        Args:
            body: the request.
            kept: its `stored` form. Instructions that are too long to be stored are taken to be the same.
        """
        if body.previous_response_id is None or not body.instructions:
            return True
        try:
            turn = Turn.named(turn_name(body.previous_response_id), calling_tenant(body.user or ""))
            asked = stored_body(await self._generator.answer_format(turn))
        except (GenerationNotFound, SessionNotFound, SessionExpired):
            return False  # it was not stored, or its session will not be found either
        own = body if body.store is False else stored_body(kept)
        return asked.instructions != own.instructions

    async def with_items(self, body: ResponsesBody) -> ResponsesBody:
        """Return the body with output items of earlier responses in place of references to them.

        Raises:
            GenerationNotFound: an item does not exist; `param` is its place.
            FieldInvalid: the input refers to too many responses, or to more text than a body may have.
        """
        referred = _references(body.input)
        if not referred:
            return body
        turns = dict.fromkeys(match[1] for match in map(_ITEM.fullmatch, referred.values()) if match)
        if len(turns) > _MOST:
            raise FieldInvalid(f"input refers to more than {_MOST} responses", "input")
        tenant = calling_tenant(body.user or "")
        items: dict[str, Any] = {}
        for name in turns:
            try:
                shown = await self.show(Turn.named(name, tenant))
            except (GenerationNotFound, SessionNotFound, SessionExpired):
                continue  # the first of its items is named below
            items |= {item["id"]: item for item in json.loads(bytes(shown.body))["output"]}
        for index, id in referred.items():
            if id not in items:
                raise GenerationNotFound(f"input[{index}]: no such item", f"input[{index}]")
        sizes = {id: len(json.dumps(item)) for id, item in items.items()}
        if sum(sizes[id] for id in referred.values()) > (most := self._services.settings.max_body_bytes):
            raise FieldInvalid(f"input refers to items of over {most} bytes", "input")
        whole_input = [items[referred[at]] if at in referred else item for at, item in enumerate(body.input)]
        return body.model_copy(update={"input": whole_input})


def _references(given: str | list[dict[str, Any]]) -> dict[int, str]:
    """Return the ids of the referred items by their places in the input."""
    return {
        index: item["id"]
        for index, item in enumerate(() if isinstance(given, str) else given)
        if item.keys() <= {"type", "id"}
        and item.get("type") in (None, "item_reference")
        and isinstance(item.get("id"), str)
    }


class _Routes:
    """The endpoints; each method is one."""

    def __init__(self, services: Services, responses: StoredResponses) -> None:
        self._responses = responses
        self._generator = Generator(services)
        self._sessions = UserSessions(services)

    async def get(self, request: Request, id: str, user: Name = "") -> Response:
        """Show a response; one that is being generated is waited for."""
        turn = Turn.named(turn_name(id), calling_tenant(user))
        return await while_connected(request, self._responses.show(turn))

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
