"""/openapi.json: bodies are read by hand, so their schemas are put in by hand, from the same models that check them."""

from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.body import Body
from gateway.messages import DetokenizeBody, TokenizeBody
from gateway.openai import ChatBody, CompletionBody
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
