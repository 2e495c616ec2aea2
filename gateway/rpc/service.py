"""gRPC services of generations and models: converts protobuf messages to requests, and events to messages."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc.aio

from gateway.admission import FairQueue
from gateway.bounds import unique_ids, unique_stops
from gateway.callers.caller import PriorityClass, allowed_priority, calling_key, calling_tenant, place_share
from gateway.models.served import ServedModel
from gateway.request import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    check_prompt,
    is_seeded,
    named_options,
    new_id,
    sampling_params,
)
from gateway.rpc import replies
from gateway.rpc.sessions import Context, SessionServicer
from gateway.rpc.shape import check_chat, check_shape, check_texts, is_quick
from gateway.rpc.tools import chat_prompt, structured_output, thinking_budget, tool_choice, tools_of
from gateway.rpc.unread import read_in_time
from gateway.tools.choice import ToolChoice
from gateway.turns.events import Started, collect, described_tokens
from gateway.turns.generation import Generator
from gateway.turns.services import Services
from gateway.turns.sessions import UserSessions
from specdec.errors import FieldInvalid, FieldRequired
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.sampling.params import SamplingParams
from specdec.wire.beams import beam_options_from_pb
from specdec.wire.params import GAMMA_POLICY, mode_from_pb, tree_from_pb

SERVICES = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())

_Read = TypeVar("_Read")

_WAITING = 1024
"""Most large messages that wait to be parsed."""
_QUICK_TOKENS = 2048
"""Most tokens described in a whole answer that is written on the event loop; a longer one is written on a thread."""


def register(server: grpc.aio.Server, services: Services) -> None:
    """Add the services to a server."""
    pb_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(services), server)
    pb_grpc.add_ModelServiceServicer_to_server(ModelServicer(services), server)
    pb_grpc.add_SessionServiceServicer_to_server(SessionServicer(services), server)


class GenerationServicer(pb_grpc.GenerationServiceServicer):
    """specdec.gateway.v1.GenerationService."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)
        self._sessions = UserSessions(services)
        self._large = FairQueue("large messages", 1, _WAITING)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:  # noqa: N802
        """Answer with the whole output at once."""
        wanted = await self._request(request, context)
        wanted = replace(wanted, resumable=bool(wanted.idempotency_key or wanted.session))
        started, outputs = await collect(self._generator.stream(wanted, context.time_remaining(), at_end=True))
        await context.send_initial_metadata(tuple(started.limits.items()))
        if (size := described_tokens(started, outputs)) <= _QUICK_TOKENS:
            return replies.whole(started, outputs)
        share = place_share(started.turn.tenant)
        return await self._services.beside.run(share, partial(replies.whole, started, outputs), size)

    async def StreamGenerate(  # noqa: N802
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        """Answer with one event for each round."""
        wanted = await self._request(request.request, context)
        resumable = bool(request.resumable or wanted.idempotency_key or wanted.session)
        stream = self._generator.stream(replace(wanted, resumable=resumable), context.time_remaining())
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, Started):
                    await context.send_initial_metadata(tuple(event.limits.items()))
                with read_in_time():
                    yield pb.StreamGenerateResponse(**replies.event(event))

    async def _request(self, message: pb.GenerateRequest, context: Context) -> GenerationRequest:
        """Return the request of a message, with thinking and tool calls in the formats of its model."""
        wanted, choice = await self._in_turn(message, partial(_wanted, message))
        wanted = replace(wanted, retries=_retries(context))
        if not choice.offered() and not isinstance(wanted.prompt, ChatPrompt):
            return wanted
        model = await self._sessions.model_of(message.model, message.session, wanted.tenant)
        wanted.check_thinking(model.tokenizer.tool_format, "thinking_token_budget")
        return await self._in_turn(message, partial(wanted.with_tools, choice, model.tokenizer.tool_format))

    async def _in_turn(self, message: pb.GenerateRequest | pb.TokenizeRequest, read: Callable[[], _Read]) -> _Read:
        """Parse a message with `read`; large messages are parsed on a thread, in fair rotation of callers."""
        if is_quick(message):
            return read()
        share = place_share(calling_tenant(message.user if isinstance(message, pb.GenerateRequest) else ""))
        await self._large.enter(share)
        try:
            return await asyncio.to_thread(read)
        finally:
            self._large.leave(share)

    async def ResumeGeneration(  # noqa: N802
        self, request: pb.ResumeGenerationRequest, context: Context
    ) -> AsyncIterator[pb.ResumeGenerationResponse]:
        """Stream the events again, from where the caller stopped reading."""
        tenant = calling_tenant(request.user)
        received = tuple(request.received_of_choices) or ((request.received,) if request.received else ())
        stream = self._generator.resume(request.id, tenant, received, context.time_remaining())
        async with aclosing(stream) as events:
            async for event in events:
                with read_in_time():
                    yield pb.ResumeGenerationResponse(**replies.event(event))

    async def CancelGeneration(  # noqa: N802
        self, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        """End a generation and keep its committed tokens."""
        tenant = calling_tenant(request.user)
        return pb.CancelGenerationResponse(cancelled=await self._generator.cancel(request.id, tenant))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: N802
        """Answer with the token ids of a text or a chat."""
        model = self._services.models.named(request.model)
        prompt = await self._in_turn(request, partial(_tokenized, request))
        length = model.pool.info.context_length
        tokens = await model.prompts.encode(prompt, calling_tenant(), length)
        return pb.TokenizeResponse(token_ids=tokens, context_length=length)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: N802
        """Answer with the text of token ids."""
        model, tenant = self._services.models.named(request.model), calling_tenant()
        text = await model.prompts.decode(request.token_ids, tenant, "token_ids", model.pool.info)
        return pb.DetokenizeResponse(text=text)


class ModelServicer(pb_grpc.ModelServiceServicer):
    """specdec.gateway.v1.ModelService."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802
        """List the models and adapters of which a verifier is ready."""
        models = self._services.models
        return pb.ListModelsResponse(models=[_model(each) for each in models.ready or [models.first]])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        """Describe one model."""
        return pb.GetModelResponse(model=_model(self._services.models.named(request.model)))


def _model(model: ServedModel) -> pb.Model:
    info = model.info
    return pb.Model(
        id=model.name,
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        gamma_max=info.gamma_max,
        tokenizer_hash=info.tokenizer_hash,
        parent=model.parent,
    )


def _retries(context: Context) -> int | None:
    """Return the number of automatic retries by the client's channel; None for a first attempt."""
    given = dict(context.invocation_metadata() or ()).get("grpc-previous-rpc-attempts", "")
    return int(given) if str(given).isdecimal() else None


def _wanted(message: pb.GenerateRequest) -> tuple[GenerationRequest, ToolChoice]:
    """Return the request of a message and its tool choice; raises RequestError."""
    check_shape(message)
    return _request(message), tool_choice(message)


def _tokenized(message: pb.TokenizeRequest) -> Prompt:
    """Return the text or chat of a message; raises RequestError."""
    which = message.WhichOneof("input")
    if which is None:
        raise FieldRequired("one of text and chat is required", "input")
    check_chat(message.chat)
    check_texts(message)
    tools = ToolChoice(tools_of(message.tools)).offered()
    if which == "chat":
        prompt: Prompt = replace(chat_prompt(message.chat, message.add_special_tokens), tools=tools)
    else:
        prompt = TextPrompt(message.text, _adds_special(message))
    check_prompt(prompt)
    return prompt


def _request(message: pb.GenerateRequest) -> GenerationRequest:
    """Return the request of a message; raises RequestError."""
    ends, speculation, grammar = message.stop, message.speculation, structured_output(message.structured_output)
    mode = mode_from_pb(speculation.mode) if speculation.mode else None
    return GenerationRequest(
        prompt=_prompt(message),
        sampling=replace(_sampling(message.sampling, ends.min_tokens), grammar=grammar),
        named=named_options(_given(message.sampling), ends.max_tokens if ends.HasField("max_tokens") else None),
        grammar_param="structured_output" if grammar else "",
        model=message.model,
        max_tokens=ends.max_tokens if ends.HasField("max_tokens") else None,
        stop=unique_stops(ends.stop),
        bad_words=tuple(message.sampling.bad_words),
        shows_stop=ends.include_stop_str_in_output,
        shows_special=message.HasField("skip_special_tokens") and not message.skip_special_tokens,
        truncate_prompt=message.truncate_prompt_tokens if message.HasField("truncate_prompt_tokens") else None,
        shows_thinking=message.chat.include_reasoning or not message.chat.HasField("include_reasoning"),
        thinking_budget=thinking_budget(message.chat),
        stop_token_ids=unique_ids(ends.stop_token_ids, "stop_token_ids"),
        ignore_eos=ends.ignore_eos,
        mode=mode,
        seeded=is_seeded(message.sampling.seed if message.sampling.HasField("seed") else None),
        gamma=speculation.gamma if speculation.HasField("gamma") else None,
        policy=GAMMA_POLICY.from_pb(speculation.policy),
        lenience=speculation.lenience if speculation.HasField("lenience") else None,
        drafter=speculation.drafter,
        detail=speculation.detail,
        tree=tree_from_pb(speculation.tree) if speculation.HasField("tree") else None,
        prediction=message.prediction,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        request_id=message.request_id or new_id(),
        idempotency_key=message.request_id,
        user=message.user,
        key=calling_key(),
        session=message.session,
        expect_turn=message.expect_turn if message.HasField("expect_turn") else None,
        priority=allowed_priority(_priority(message.priority), calling_key(), "priority"),
        cache_salt=message.cache_salt,
        n=message.n if message.HasField("n") else 1,
        beams=beam_options_from_pb(message.beam_search) if message.HasField("beam_search") else None,
    )


def _priority(given: common_pb2.PriorityClass.ValueType) -> PriorityClass:
    priority = replies.PRIORITY.from_pb(given)
    if given != common_pb2.PRIORITY_CLASS_UNSPECIFIED and priority is None:
        raise FieldInvalid(f"priority: there is no class {given}", "priority")
    return priority or PriorityClass.DEFAULT


def _prompt(message: pb.GenerateRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(message.text, _adds_special(message))
        case "tokens":
            return TokenPrompt(tuple(message.tokens.token_ids))
        case "chat":
            return chat_prompt(message.chat, message.add_special_tokens)
    raise FieldRequired("one of text, tokens and chat is required", "prompt")


def _adds_special(message: pb.GenerateRequest | pb.TokenizeRequest) -> bool:
    """Whether a text gets the tokens that a text begins with."""
    return message.add_special_tokens or not message.HasField("add_special_tokens")


def _sampling(options: pb.SamplingOptions, min_tokens: int) -> SamplingParams:
    """Return sampling parameters from the options that are set; SamplingParams has the other defaults."""
    return sampling_params(_given(options) | {"min_tokens": min_tokens})


def _given(options: pb.SamplingOptions) -> dict[str, Any]:
    """Return the options that are set, except bad words, which are texts whose ids depend on the model."""
    found = [(field.name, value) for field, value in options.ListFields() if field.name != "bad_words"]
    return {name: _plain(name, value) for name, value in found}


def _plain(name: str, value: Any) -> Any:
    """Convert a protobuf map to a dict and a repeated field to a tuple of distinct ids; return others unchanged."""
    if isinstance(value, Mapping):
        unique_ids(value.keys(), name)
        return dict(value)
    return unique_ids(value, name) if isinstance(value, Sequence) else value
