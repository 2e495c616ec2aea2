"""Routes and /openapi.json: endpoints read their bodies themselves, so the schemas of bodies are added here."""

from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.http.body import Body
from gateway.http.completions import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.http.replies import ChatCompletionChunk, ErrorBody
from gateway.http.session_replies import SessionBody

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[Body], ...] = (ChatBody, CompletionBody, DetokenizeBody, SessionBody, TokenizeBody)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "Bad request",
        401: "No API key, or an unknown one",
        403: "A user must be named, or the key may not ask for the priority",
        404: "Unknown model, session or generation",
        409: "Conflict",
        410: "Not kept any more",
        413: "Body too large",
        422: "Idempotency key of another request",
        429: "Too much work, or more than the key may ask for",
        500: "Internal error",
        503: "Something needed is missing",
        504: "Deadline passed",
    }.items()
}


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
        route: method and path, such as "GET /v1/models".
        body: the model of its JSON body; None when it reads none.
        events: whether it can answer with an event stream, too.
    """
    method, path = route.split()
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"$ref": _REF.format(model=body.__name__)}
        extra = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
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
    """Answer HEAD as GET is answered; the server leaves the body out."""
    app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


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
