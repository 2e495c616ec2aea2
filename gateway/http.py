"""The HTTP front: routes onto the one use case."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway import openapi, sse
from gateway.body import Body, parse_json, read_body
from gateway.events import Event, Finished, Round, Started
from gateway.generation import Generator, Services
from gateway.health import Health
from gateway.messages import DetokenizeBody, TokenizeBody
from gateway.openai import ChatBody, CompletionBody
from gateway.plan import check_model
from gateway.problems import CLIENT_GONE, Edge, on_error, on_http_error
from gateway.replies import Answer, ChatCompletion, Completion, Model, ModelList, Text, Tokens
from gateway.request import check_ids
from gateway.writers import ChatWriter, CompletionWriter, Form, Output, Writer
from specdec.errors import InternalError, SpecdecError

_Result = TypeVar("_Result")
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
        return await self._generate(request, await self._body(request, CompletionBody), CompletionWriter)

    async def chat_completions(self, request: Request) -> Response:
        """Continue a conversation."""
        return await self._generate(request, await self._body(request, ChatBody), ChatWriter)

    async def tokenize(self, request: Request) -> Response:
        """Show the tokens of a text or a conversation."""
        body = await self._body(request, TokenizeBody)
        check_model(body.model or "", self._services.settings.model.served_name)
        tokens = await self._services.tokenizer.encode(body.input())
        context = self._services.pool.facts.context_length
        return _json(Tokens(tokens=list(tokens), count=len(tokens), max_model_len=context))

    async def detokenize(self, request: Request) -> Response:
        """Show the text of tokens."""
        body = await self._body(request, DetokenizeBody)
        check_model(body.model or "", self._services.settings.model.served_name)
        check_ids(body.tokens, "tokens", self._services.pool.facts.vocab_size)
        return _json(Text(prompt=self._services.tokenizer.decode(body.tokens)))

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
        limit = self._services.settings.max_body_bytes
        raw = await read_body(request.stream(), request.headers.get("content-length"), limit)
        return kind.parse(parse_json(raw))

    async def _generate(
        self, request: Request, body: CompletionBody | ChatBody, writer: Callable[[Started, Form], Writer]
    ) -> Response:
        events = self._generator.stream(body.request(request.state.request_id))
        pending = sse.Pending(events)
        return await _while_connected(request, self._answer(pending, body, writer))

    async def _answer(
        self, pending: sse.Pending, body: CompletionBody | ChatBody, writer: Callable[[Started, Form], Writer]
    ) -> Response:
        """The response; a stream is not begun before its first round, so that what fails early has a status."""
        ping = self._services.settings.ping
        try:
            started = _as_started(await pending.take())
            form = Form(self._services.tokenizer.piece, body.include_usage, bool(body.return_token_ids), body.n or 1)
            writes = writer(started, form)
            if not body.stream:
                async with aclosing(pending):
                    return _json(await _whole(pending, writes))
            if await pending.ready(ping):
                pending.raise_if_failed()
        except BaseException:
            await pending.aclose()
            raise
        return sse.EventStream(pending, writes, started, ping)


async def _whole(pending: sse.Pending, writer: Writer) -> Answer:
    outputs = [Output() for _ in range(writer.choices)]
    while not all(output.finished for output in outputs):
        match await pending.take():
            case Round() as event:
                outputs[event.choice].tokens += event.tokens
            case Finished() as event:
                outputs[event.choice].finished = event
    return writer.whole(outputs)


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The outcome of `work`, which is cancelled when the client leaves before it is done."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _as_started(event: Event) -> Started:
    if not isinstance(event, Started):
        raise InternalError("a generation did not begin with Started")
    return event


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")
