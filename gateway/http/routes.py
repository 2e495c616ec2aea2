"""The HTTP front: routes onto the one use case."""

import time
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException

from gateway.health import Health
from gateway.http import answers, openapi, sessions
from gateway.http.answers import json_response
from gateway.http.body import Body, parse_body
from gateway.http.cursor import idempotency_key, received
from gateway.http.messages import DetokenizeBody, TokenizeBody
from gateway.http.openai import ChatBody, CompletionBody
from gateway.http.problems import Edge, on_error, on_http_error
from gateway.http.replies import ChatCompletion, Completion, Model, ModelList, Text, Tokens
from gateway.http.shape import Shape
from gateway.request import check_ids
from gateway.turns.generation import Generator
from gateway.turns.plan import check_model
from gateway.turns.services import Services
from specdec.errors import SpecdecError

_BodyType = TypeVar("_BodyType", bound=Body)


def build(services: Services, health: Health) -> FastAPI:
    """The ASGI application."""
    app = openapi.DescribedApp(
        title="specdec gateway", version="1", docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_exception_handler(SpecdecError, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_middleware(Edge, metrics=services.metrics)
    _Api(services).mount(app)
    sessions.mount(app, services)
    _Probes(services, health).mount(app)
    return app


class _Probes:
    """Is it alive, is it ready, how is it doing."""

    def __init__(self, services: Services, health: Health) -> None:
        self._services = services
        self._health = health

    def mount(self, app: FastAPI) -> None:
        app.add_api_route("/livez", self.livez, methods=["GET"])
        app.add_api_route("/readyz", self.readyz, methods=["GET"])
        app.add_api_route("/metrics", self.metrics, methods=["GET"])

    async def livez(self) -> Response:
        """The process runs."""
        return JSONResponse({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether a request would be served, and what is missing if not."""
        missing = await self._health.missing()
        body = {
            "status": "not ready" if missing else "ready",
            "missing": missing,
            "verifiers": self._services.pool.states,
        }
        return JSONResponse(body, status_code=503 if missing else 200)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._services.metrics.registry), headers={"content-type": content_type})


class _Api:
    """What OpenAI's and vLLM's clients call."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)
        self._created = int(time.time())

    def mount(self, app: FastAPI) -> None:
        openapi.post(app, "/v1/completions", self.completions, CompletionBody, Completion, events=True)
        openapi.post(app, "/v1/chat/completions", self.chat_completions, ChatBody, ChatCompletion, events=True)
        openapi.post(app, "/v1/tokenize", self.tokenize, TokenizeBody, Tokens)
        openapi.post(app, "/v1/detokenize", self.detokenize, DetokenizeBody, Text)
        openapi.get(app, "/v1/models", self.models, ModelList)
        openapi.get(app, "/v1/models/{model:path}", self.model, Model)

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        return await self._generate(request, await self._body(request, CompletionBody))

    async def chat_completions(self, request: Request) -> Response:
        """Continue a conversation."""
        return await self._generate(request, await self._body(request, ChatBody))

    async def tokenize(self, request: Request) -> Response:
        """Show the tokens of a text or a conversation."""
        body = await self._body(request, TokenizeBody)
        check_model(body.model or "", self._services.settings.model.served_name)
        tokens = await self._services.tokenizer.encode(body.input())
        context = self._services.pool.facts.context_length
        return json_response(Tokens(tokens=list(tokens), count=len(tokens), max_model_len=context))

    async def detokenize(self, request: Request) -> Response:
        """Show the text of tokens."""
        body = await self._body(request, DetokenizeBody)
        check_model(body.model or "", self._services.settings.model.served_name)
        check_ids(body.tokens, "tokens", self._services.pool.facts.vocab_size)
        return json_response(Text(prompt=self._services.tokenizer.decode(body.tokens)))

    async def models(self) -> ModelList:
        """The one model there is."""
        return ModelList(data=[self._describe()])

    async def model(self, model: str) -> Model:
        """One model and its limits."""
        check_model(model, self._services.settings.model.served_name)
        return self._describe()

    def _describe(self) -> Model:
        facts = self._services.pool.facts
        return Model(
            id=self._services.settings.model.served_name,
            created=self._created,
            max_model_len=facts.context_length,
            vocab_size=facts.vocab_size,
            gamma_max=facts.gamma_max,
            tokenizer_hash=facts.tokenizer_hash,
            system_fingerprint=facts.system_fingerprint,
        )

    async def _body(self, request: Request, kind: type[_BodyType]) -> _BodyType:
        return kind.parse(await parse_body(request, self._services.settings.max_body_bytes))

    async def _generate(self, request: Request, body: CompletionBody | ChatBody) -> Response:
        shape = Shape(isinstance(body, ChatBody), body.include_usage, bool(body.return_token_ids))
        key = idempotency_key(request.headers)
        wanted = replace(
            body.request(request.state.request_id),
            idempotency_key=key,
            form=shape.text(),
            resumable=bool(body.stream or key or body.session),
        )
        writer_of = partial(shape.writer, piece=self._services.tokenizer.piece)
        if not body.stream:
            return await answers.whole(request, self._generator.stream(wanted), writer_of)
        after = received(request.headers)
        events = self._generator.stream(wanted, after=after)
        return await answers.streamed(request, events, writer_of, self._services.settings.ping, after)
