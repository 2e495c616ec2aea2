"""The HTTP application: completions, tokens and models, with sessions and probes."""

import time
from dataclasses import replace
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway.http import openapi, probes, sessions
from gateway.http.answers import json_response, streamed, while_connected, whole
from gateway.http.body import Body, parse_body
from gateway.http.completions import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.http.cursor import idempotency_key, received
from gateway.http.problems import Edge, on_error, on_http_error
from gateway.http.replies import ChatCompletion, Completion, Model, ModelList, Text, Tokens
from gateway.http.writers import AnswerFormat
from gateway.request import ANONYMOUS, check_model
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from specdec.errors import SpecdecError

_BodyType = TypeVar("_BodyType", bound=Body)


def build(services: Services) -> FastAPI:
    """The ASGI application."""
    app = openapi.DescribedApp(
        title="specdec gateway", version="1", docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_exception_handler(SpecdecError, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_middleware(Edge, metrics=services.metrics)
    _Api(services).mount(app)
    sessions.mount(app, services)
    probes.mount(app, services, in_full=services.settings.admin is None)
    return app


class _Api:
    """The endpoints that clients of OpenAI and vLLM call."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)
        self._created = int(time.time())

    def mount(self, app: FastAPI) -> None:
        """Add the routes."""
        openapi.add(app, "POST /v1/completions", self.completions, Completion, CompletionBody, events=True)
        openapi.add(app, "POST /v1/chat/completions", self.chat_completions, ChatCompletion, ChatBody, events=True)
        openapi.add(app, "POST /v1/tokenize", self.tokenize, Tokens, TokenizeBody)
        openapi.add(app, "POST /v1/detokenize", self.detokenize, Text, DetokenizeBody)
        openapi.add(app, "GET /v1/models", self.models, ModelList)
        openapi.add(app, "GET /v1/models/{model:path}", self.model, Model)

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
        context = self._services.pool.info.context_length
        tokens = await self._services.prompts.encode(body.input(), ANONYMOUS, context)
        return json_response(Tokens(tokens=list(tokens), count=len(tokens), max_model_len=context))

    async def detokenize(self, request: Request) -> Response:
        """Show the text of tokens."""
        body = await self._body(request, DetokenizeBody)
        check_model(body.model or "", self._services.settings.model.served_name)
        text = await self._services.prompts.decode(body.tokens, "tokens", self._services.pool.info)
        return json_response(Text(prompt=text))

    async def models(self) -> ModelList:
        """The models; there is one."""
        return ModelList(data=[self._describe()])

    async def model(self, model: str) -> Model:
        """One model and its limits."""
        check_model(model, self._services.settings.model.served_name)
        return self._describe()

    def _describe(self) -> Model:
        info = self._services.pool.info
        return Model(
            id=self._services.settings.model.served_name,
            created=self._created,
            max_model_len=info.context_length,
            vocab_size=info.vocab_size,
            gamma_max=info.gamma_max,
            tokenizer_hash=info.tokenizer_hash,
            system_fingerprint=info.system_fingerprint,
        )

    async def _body(self, request: Request, kind: type[_BodyType]) -> _BodyType:
        return kind.parse(await parse_body(request, self._services.settings.max_body_bytes))

    async def _generate(self, request: Request, body: CompletionBody | ChatBody) -> Response:
        tools = self._services.tokenizer.tool_format
        written = tools.name if isinstance(body, ChatBody) and body.offered() else ""
        shown = bool(body.return_token_ids)
        answer_format = AnswerFormat(isinstance(body, ChatBody), body.include_usage, shown, written)
        key = idempotency_key(request.headers)
        wanted = replace(
            body.request(request.state.request_id, tools),
            idempotency_key=key,
            answer_format=answer_format.text(),
            resumable=bool(body.stream or key or body.session),
        )
        token_bytes = self._services.tokenizer.token_bytes
        if not body.stream:
            return await while_connected(request, whole(self._generator.stream(wanted), token_bytes, answer_format))
        after = received(request.headers)
        events = self._generator.stream(wanted, after=after)
        answer = streamed(events, token_bytes, answer_format, self._services.settings.ping, after)
        return await while_connected(request, answer)
