"""/openapi.json: bodies are read by hand, so their schemas are put in by hand, from the same models that check them."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.http.body import Body
from gateway.http.messages import DetokenizeBody, TokenizeBody
from gateway.http.openai import ChatBody, CompletionBody
from gateway.http.replies import ChatCompletionChunk, ErrorBody
from gateway.http.session_replies import SessionBody

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[Body], ...] = (ChatBody, CompletionBody, DetokenizeBody, SessionBody, TokenizeBody)
_PATH = re.compile(r"{(\w+)}")
_QUERY = {name: {"type": "integer", "minimum": 0} for name in ("limit", "received")}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "Bad request",
        404: "Unknown model, session or generation",
        409: "Conflict",
        410: "Not kept any more",
        413: "Body too large",
        422: "Idempotency key of another request",
        429: "Too much work",
        500: "Internal error",
        503: "Something needed is missing",
        504: "Deadline passed",
    }.items()
}


def get(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Any],
    answer: type[BaseModel],
    query: Sequence[str] = (),
    events: bool = False,
) -> None:
    """Add a route that answers with a model, or with `events` a stream; `query` names what it reads of the query."""
    _plain(app, "GET", path, endpoint, answer, query, {"text/event-stream": {}} if events else {})


def delete(
    app: FastAPI, path: str, endpoint: Callable[..., Any], answer: type[BaseModel], query: Sequence[str]
) -> None:
    """Add a route that forgets or ends something."""
    _plain(app, "DELETE", path, endpoint, answer, query, {})


def _plain(  # noqa: PLR0913  # one route, its parts
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Callable[..., Any],
    answer: type[BaseModel],
    query: Sequence[str],
    content: dict[str, Any],
) -> None:
    inside = [("path", name) for name in _PATH.findall(path)] if query else []
    parameters = [
        {"name": name, "in": where, "required": where == "path", "schema": _QUERY.get(name, {"type": "string"})}
        for where, name in (*inside, *(("query", name) for name in query))
    ]
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=None if query else answer,
        responses={200: {"model": answer, "content": content}, **_REFUSALS},
        openapi_extra={"parameters": parameters} if parameters else None,
    )


def post(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Any],
    body: type[Body],
    answer: type[BaseModel],
    events: bool = False,
) -> None:
    """Add a route that reads its body itself; with `events` it can answer with a stream, too."""
    content: dict[str, Any] = {"text/event-stream": {}} if events else {}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model=None,
        responses={200: {"model": answer, "content": content}, **_REFUSALS},
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}},
            }
        },
    )


class DescribedApp(FastAPI):
    """An application whose description has the bodies, too."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            schema = get_openapi(title=self.title, version=self.version, routes=self.routes)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
            self.openapi_schema = schema
        return self.openapi_schema


def _schemas() -> dict[str, Any]:
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]]
    models = [*((body, "validation") for body in _BODIES), (ChatCompletionChunk, "serialization")]
    _, definitions = models_json_schema(models, ref_template=_REF)
    return dict(definitions["$defs"])
