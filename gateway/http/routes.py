"""HTTP application: completions, tokens and models, with sessions and probes."""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.callers.caller import allowed_priority, calling_key, calling_tenant
from gateway.config import GatewaySettings
from gateway.http import openapi, page, probes, sessions, stored_responses
from gateway.http.edge import BrowserGuard, Door, Edge
from gateway.http.messages_api.body import CountBody, MessagesBody
from gateway.http.messages_api.replies import MessageReply, MessagesWriter, TokenCount
from gateway.http.replies.answers import (
    WriterMaker,
    idempotency_key,
    json_response,
    received,
    retries,
    streamed,
    wants_ids,
    while_connected,
    whole,
    writer_for,
)
from gateway.http.replies.objects import ChatCompletion, Completion, Model, ModelList, Text, Tokens, known_drafter
from gateway.http.replies.problems import on_error, on_http_error
from gateway.http.replies.writers import AnswerFormat
from gateway.http.requests.bodies import BodyReader
from gateway.http.requests.completions import ChatBody, CompletionBody
from gateway.http.requests.token_bodies import DetokenizeBody, TokenizeBody
from gateway.http.responses.body import ResponsesBody
from gateway.http.responses.replies import ResponseReply, ResponsesWriter
from gateway.http.responses.stored import stored
from gateway.models.served import ServedModel
from gateway.request import GenerationRequest
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.events import Started
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import UserSessions
from specdec.errors import NoVerifier, SpecdecError
from specdec.serving.addresses import is_loopback
from specdec.serving.version import package_version


def build(services: Services, bodies: BodyReader) -> ASGIApp:
    """Return the ASGI application."""
    app = openapi.DescribedApp(
        partial(_limits, services),
        title="specdec gateway",
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(SpecdecError, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_error)  # which raises it again, for Edge to answer
    _Api(services, bodies).mount(app)
    sessions.mount(app, services, bodies)
    stored_responses.mount(app, services)
    if services.settings.page:
        page.mount(app)
    probes.mount(app, services, in_full=services.settings.admin is None)
    return _guarded(_DirectRoutes(app), services)


def _guarded(app: ASGIApp, services: Services) -> ASGIApp:
    """Return the application inside the layers that every request passes."""
    if services.keys:
        app = Door(app, services.keys)
    if origins := services.settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return Edge(BrowserGuard(app, _host_names(services.settings)), services.metrics)


class _DirectRoutes:
    """Calls the endpoints that read their own bodies; FastAPI serves the others, and describes all."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._routes = {
            route.path: route
            for route in app.routes
            if isinstance(route, APIRoute)
            and route.methods == {"POST"}
            and [*signature(route.endpoint).parameters] == ["request"]
        }
        """Routes of POST whose endpoint takes the request alone, by path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.endpoint(request)
        except SpecdecError as error:
            response = await on_error(request, error)
        await response(scope, receive, send)


class _Api:
    """Endpoints for clients of OpenAI, vLLM and Anthropic."""

    def __init__(self, services: Services, bodies: BodyReader) -> None:
        self._services = services
        self._bodies = bodies
        self._generator = Generator(services)
        self._sessions = UserSessions(services)
        self._responses = stored_responses.StoredResponses(services)
        self._created = int(time.time())

    def mount(self, app: FastAPI) -> None:
        """Add the routes."""
        openapi.add(app, "POST /v1/completions", self.completions, Completion, CompletionBody, events=True)
        openapi.add(app, "POST /v1/chat/completions", self.chat_completions, ChatCompletion, ChatBody, events=True)
        openapi.add(app, "POST /v1/responses", self.responses, ResponseReply, ResponsesBody, events=True)
        openapi.add(app, "POST /v1/messages", self.messages, MessageReply, MessagesBody, events=True)
        openapi.add(app, "POST /v1/messages/count_tokens", self.count_tokens, TokenCount, CountBody)
        for root in ("", "/v1"):
            openapi.add(app, f"POST {root}/tokenize", self.tokenize, Tokens, TokenizeBody)
            openapi.add(app, f"POST {root}/detokenize", self.detokenize, Text, DetokenizeBody)
        openapi.add(app, "GET /v1/models", self.models, ModelList)
        openapi.add(app, "GET /v1/models/{model:path}", self.model, Model)

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        return await self._generate(request, await self._bodies.read(request, CompletionBody))

    async def chat_completions(self, request: Request) -> Response:
        """Continue a conversation."""
        return await self._generate(request, await self._bodies.read(request, ChatBody))

    async def responses(self, request: Request) -> Response:
        """Answer an input, or continue an earlier response."""
        read = await self._bodies.read(request, ResponsesBody)
        body = await self._responses.with_items(read)
        request.state.large_body |= body is not read  # the items may be large
        kept = await self._bodies.convert(request, partial(stored, body))
        instructs = await self._responses.instructs(body, kept)
        chat = await self._bodies.convert(request, partial(body.chat, instructs=instructs))

        def writer(started: Started, tokenizer: ModelTokenizer) -> ResponsesWriter:
            return ResponsesWriter(started, body, tokenizer.token_bytes)

        return await self._generate(request, chat, writer, kept)

    async def messages(self, request: Request) -> Response:
        """Continue a conversation, as Anthropic's API has it."""
        body = await self._bodies.read(request, MessagesBody)
        chat = await self._bodies.convert(request, body.chat)
        return await self._generate(request, chat, lambda started, _: MessagesWriter(started))

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a conversation, as Anthropic's API has it."""
        body = await self._bodies.read(request, CountBody)
        asked = await self._request(request, await self._bodies.convert(request, body.chat))
        model = self._services.models.named(asked.model)
        tokens = await model.prompts.encode(asked.prompt, calling_tenant(), model.pool.info.context_length)
        return json_response(TokenCount(input_tokens=len(tokens)))

    async def tokenize(self, request: Request) -> Response:
        """Show the tokens of a text or a conversation."""
        body = await self._bodies.read(request, TokenizeBody)
        model = self._services.models.named(body.model or "")
        context = model.pool.info.context_length
        prompt = await self._bodies.convert(request, body.input)
        tokens = await model.prompts.encode(prompt, calling_tenant(), context)
        shown = Tokens(tokens=list(tokens), count=len(tokens), max_model_len=context)
        if body.return_token_strs:
            shown.token_strs = await model.prompts.written(tokens, calling_tenant())
        return json_response(shown, exclude_unset=True)

    async def detokenize(self, request: Request) -> Response:
        """Show the text of tokens."""
        body = await self._bodies.read(request, DetokenizeBody)
        model, tenant = self._services.models.named(body.model or ""), calling_tenant()
        text = await model.prompts.decode(body.tokens, tenant, "tokens", model.pool.info)
        return json_response(Text(prompt=text))

    async def models(self) -> ModelList:
        """The models and adapters of which a verifier is ready, the first of the settings first."""
        models = self._services.models
        return ModelList(data=[self._describe(model) for model in models.ready or [models.first]])

    async def model(self, model: str) -> Model:
        """One model and its limits."""
        return self._describe(self._services.models.named(model))

    def _describe(self, model: ServedModel) -> Model:
        info = model.info
        return Model(
            id=model.name,
            parent=model.parent or None,
            created=self._created,
            max_model_len=info.context_length,
            vocab_size=info.vocab_size,
            gamma_max=info.gamma_max,
            tokenizer_hash=info.tokenizer_hash,
            system_fingerprint=info.system_fingerprint,
            drafters=[known_drafter(each) for each in model.pool.drafters],
        )

    async def _generate(
        self, request: Request, body: CompletionBody | ChatBody, make: WriterMaker | None = None, kept: str = ""
    ) -> Response:
        """Generate the answer to a body.

        Args:
            request: HTTP request.
            body: parsed body.
            make: creates the answer's writer; None for OpenAI's completions.
            kept: answer format to store with the turn; empty for that of a completion.
        """
        answer_format, key = answer_format_of(body), idempotency_key(request.headers)
        ids = bool(body.stream and (wants_ids(request.headers) or body.options.resumable))
        asked, caller = await self._request(request, body), calling_key()
        wanted = replace(
            asked,
            key=caller,
            priority=allowed_priority(asked.priority, caller, "service_tier"),
            idempotency_key=key,
            retries=retries(request.headers),
            answer_format=kept or answer_format.text(),
            resumable=bool(ids or key or body.session),
        )
        services, make = self._services, make or partial(writer_for, answer_format=answer_format)
        if not body.stream:
            return await while_connected(request, whole(self._generator.stream(wanted, at_end=True), services, make))
        after = received(request.headers)
        events = self._generator.stream(wanted, after=after)
        return await while_connected(request, streamed(events, services, make, after, ids=ids))

    async def _request(self, request: Request, body: CompletionBody | ChatBody) -> GenerationRequest:
        """Return the generation request of a body; its tool calls use the model's format."""
        request_id = request.state.request_id
        if not isinstance(body, ChatBody):
            return await self._bodies.convert(request, partial(body.request, request_id))
        tenant = calling_tenant(body.user or "")
        model = await self._sessions.model_of(body.model or "", body.session or "", tenant)
        return await self._bodies.convert(request, partial(body.request, request_id, model.tokenizer.tool_format))


def _host_names(settings: GatewaySettings) -> Collection[str] | None:
    """Return the accepted host names besides those of this machine; None accepts any."""
    guarded = settings.api_keys is None and not settings.public_tls.certificate and is_loopback(settings.http)
    return frozenset(settings.hosts) if guarded else None


def _limits(services: Services) -> openapi.Limits:
    """Return the limits that depend on the models. A model without a known verifier contributes only its name."""
    infos = []
    for model in services.models:
        with suppress(NoVerifier):
            infos.append(model.pool.info)
    found: dict[str, dict[str, object]] = {}
    if infos:
        found["token"] = {"maximum": max(info.vocab_size for info in infos) - 1}
        found["gamma"] = {"maximum": max(info.gamma_max for info in infos)}
        found["context"] = {"maximum": max(info.context_length for info in infos) - 1}
    return {**found, "model": {"enum": list(services.models.listed)}, "ttl": {"maximum": services.settings.session_ttl}}


def answer_format_of(body: CompletionBody | ChatBody) -> AnswerFormat:
    """Return the answer format that a body asks for."""
    options = body.options
    return AnswerFormat(
        chat=isinstance(body, ChatBody),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        echo=isinstance(body, CompletionBody) and bool(body.echo),
        prompt_only=isinstance(body, CompletionBody) and body.shows_prompt_only,
        prompt_logprobs=body.prompt_logprobs is not None,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
    )
