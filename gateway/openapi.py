"""/openapi.json: bodies are read by hand, so their schemas are put in by hand, from the same models that check them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.body import Body
from gateway.openai import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.replies import ChatCompletionChunk, ErrorBody

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[Body], ...] = (ChatBody, CompletionBody, DetokenizeBody, TokenizeBody)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "Bad request",
        404: "Unknown model",
        409: "Conflict",
        413: "Body too large",
        429: "Too much work",
        500: "Internal error",
        503: "Something needed is missing",
        504: "Deadline passed",
    }.items()
}


def get(app: FastAPI, path: str, endpoint: Callable[..., Any], answer: type[BaseModel]) -> None:
    """Add a route that answers with a model."""
    app.add_api_route(path, endpoint, methods=["GET"], response_model=answer, responses=_REFUSALS)


def post(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Any],
    body: type[Body],
    answer: type[BaseModel],
    events: bool = False,
) -> None:
    """Add a route that reads its body itself; with `events` it can answer with a stream, too."""
    content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}} if events else {}
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


def complete(app: FastAPI) -> None:
    """Have the application describe its bodies, too."""
    app.openapi = partial(_describe, app)  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, more = models_json_schema(
            [*((body, "validation") for body in _BODIES), (ChatCompletionChunk, "serialization")], ref_template=_REF
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(more["$defs"])
        app.openapi_schema = schema
    return app.openapi_schema
