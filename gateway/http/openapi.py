"""Routes and /openapi.json. Endpoints read their bodies themselves, so this module adds the body schemas."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.callers.caller import MAX_NAME
from gateway.http.messages_api.body import CountBody, MessagesBody
from gateway.http.replies.objects import ChatCompletionChunk, ErrorBody
from gateway.http.requests.body import Body
from gateway.http.requests.completions import ChatBody, CompletionBody
from gateway.http.requests.fields import BOUND
from gateway.http.requests.session_bodies import SessionBody
from gateway.http.requests.token_bodies import DetokenizeBody, TokenizeBody
from gateway.http.responses.body import ResponsesBody

Limits = Mapping[str, Mapping[str, Any]]

_HEADERS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("POST", "Idempotency-Key", {"type": "string", "maxLength": MAX_NAME}, "Requests of one key run once."),
    ("events", "Last-Event-ID", {"type": "string"}, "The id of the last event that the caller has."),
    ("stream", "Specdec-Resumable", {"enum": ["true", "false"]}, "Whether the events of a stream have ids."),
)
"""Request headers by kind of endpoint: kind, name, schema and description."""

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[Body], ...] = (
    ChatBody,
    CompletionBody,
    CountBody,
    DetokenizeBody,
    MessagesBody,
    ResponsesBody,
    SessionBody,
    TokenizeBody,
)
_REPLIES: tuple[type[BaseModel], ...] = (ChatCompletionChunk, ErrorBody)
"""Additional models in the description that are not response models of routes."""
_REFUSAL = {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"content": _REFUSAL, "description": text}
    for status, text in {
        400: "Bad request",
        401: "No API key, or an unknown one",
        403: "A user must be named, or the key may not ask for the priority",
        404: "Unknown model, session or generation",
        409: "Conflict",
        410: "Not kept any more",
        413: "Body too large",
        415: "Body in an unknown encoding, or sent by a page and not JSON by its type",
        422: "Idempotency key of another request",
        429: "Too much work, or more than the key may ask for",
        500: "Internal error",
        503: "Something needed is missing",
        504: "Deadline passed",
    }.items()
}
"""Error responses, with their model by name, because FastAPI builds a validator per model, status and route."""


def add(
    app: FastAPI,
    route: str,
    endpoint: Callable[..., Any],
    answer: type[BaseModel],
    body: type[Body] | None = None,
    events: bool = False,
) -> None:
    """Add a route to the application.

    Args:
        app: application.
        route: method and path, such as "GET /v1/models".
        endpoint: function that answers the route.
        answer: model of the response.
        body: model of the JSON body; None if the endpoint reads none.
        events: whether the endpoint can also answer with an event stream.
    """
    method, path = route.split()
    kinds = {"events"} if events else set()
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"$ref": _REF.format(model=body.__name__)}
        extra = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        kinds |= {"POST"} if events or body is SessionBody else set()
        kinds |= {"stream"} if events else set()
    extra["parameters"] = [
        {"in": "header", "name": name, "schema": schema, "description": meaning, "required": False}
        for kind, name, schema, meaning in _HEADERS
        if kind in kinds
    ]
    content: dict[str, Any] = {"content": {"text/event-stream": {}}} if events else {}
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=answer,
        responses={200: content, **_REFUSALS},
        openapi_extra=extra,
    )
    if method == "GET" and not events:
        add_head(app, path, endpoint)


def add_head(app: FastAPI, path: str, endpoint: Callable[..., Any]) -> None:
    """Add a HEAD route that answers like GET; the server omits the body."""
    app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


class DescribedApp(FastAPI):
    """FastAPI application whose OpenAPI description includes body schemas with the limits of the served models."""

    def __init__(self, limits: Callable[[], Limits], **options: Any) -> None:
        """Args: limits: returns the current limits: schema keywords by the name of each bound."""
        super().__init__(**options)
        self._limits = limits

    def openapi(self) -> dict[str, Any]:
        """Return the description; everything but its limits is cached."""
        described: dict[str, Any] = _limited(self._static(), self._limits())
        return described

    def _static(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = get_openapi(title=self.title, version=self.version, routes=self.routes)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
            self.openapi_schema = schema
        return self.openapi_schema


def _limited(schema: Any, limits: Limits) -> Any:
    """Return the schema with the names of bounds replaced by limits."""
    match schema:
        case dict():
            limit = limits.get(schema.get(BOUND, ""), {})
            return {key: _limited(value, limits) for key, value in schema.items() if key != BOUND} | dict(limit)
        case list():
            return [_limited(value, limits) for value in schema]
    return schema


def _schemas() -> dict[str, Any]:
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]]
    models = [*((body, "validation") for body in _BODIES), *((reply, "serialization") for reply in _REPLIES)]
    _, definitions = models_json_schema(models, ref_template=_REF)
    return dict(definitions["$defs"])
