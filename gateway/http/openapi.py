"""Routes and /openapi.json: endpoints read their bodies themselves, so the schemas of bodies are added here."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.http.body import Body
from gateway.http.completions import ChatBody, CompletionBody
from gateway.http.replies import ChatCompletionChunk, ErrorBody
from gateway.http.session_replies import SessionBody
from gateway.http.tokenize import DetokenizeBody, TokenizeBody

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[Body], ...] = (ChatBody, CompletionBody, DetokenizeBody, SessionBody, TokenizeBody)
_PATH = re.compile(r"{(\w+)}")
_QUERY = {name: {"type": "integer", "minimum": 0} for name in ("limit", "received")}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "Bad request",
        403: "A user must be named",
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


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the API and what its description says."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    answer: type[BaseModel]
    body: type[Body] | None = None
    """The model of its JSON body; None when it reads none."""
    query: tuple[str, ...] = ()
    """Names of the query parameters it reads."""
    events: bool = False
    """Whether it can answer with an event stream, too."""


def add(app: FastAPI, *routes: Route) -> None:
    """Add routes to the application."""
    for route in routes:
        content: dict[str, Any] = {"text/event-stream": {}} if route.events else {}
        app.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            response_model=None if route.body or route.query else route.answer,
            responses={200: {"model": route.answer, "content": content}, **_REFUSALS},
            openapi_extra=_body(route.body) | _parameters(route),
        )


def _body(body: type[Body] | None) -> dict[str, Any]:
    if body is None:
        return {}
    schema = {"$ref": _REF.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parameters(route: Route) -> dict[str, Any]:
    """The parameters of a route that reads its query itself; FastAPI describes those of the others."""
    if not route.query:
        return {}
    named = [("path", name) for name in _PATH.findall(route.path)] + [("query", name) for name in route.query]
    return {
        "parameters": [
            {"name": name, "in": where, "required": where == "path", "schema": _QUERY.get(name, {"type": "string"})}
            for where, name in named
        ]
    }


class DescribedApp(FastAPI):
    """An application whose description has the schemas of bodies, too."""

    def openapi(self) -> dict[str, Any]:
        """The description; it is made once."""
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
