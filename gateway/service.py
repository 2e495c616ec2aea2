"""The gRPC front: protobuf to values and back, around the one use case."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from gateway.events import Event, Finished, Round, Started
from gateway.generation import Generator, Services
from gateway.output import OutputToken
from gateway.plan import check_model
from gateway.request import (
    ChatPrompt,
    GenerationRequest,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    check_ids,
    check_prompt,
    new_id,
    random_seed,
)
from gateway.statistics import Summary
from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.errors import FieldRequired, InternalError
from specdec.logprobs import TokenLogprobs
from specdec.params import Mode, SamplingParams
from specdec.wire.logprobs import floats_to_bytes
from specdec.wire.params import finish_to_pb, mode_from_pb, mode_to_pb, origin_to_pb
from specdec.wire.tokens import tokens_to_bytes

SERVICES = ("specdec.gateway.v1.GenerationService", "specdec.gateway.v1.ModelService")

Context = grpc.aio.ServicerContext[Any, Any]


def register(server: grpc.aio.Server, services: Services) -> None:
    """Add both services to a server."""
    pb_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(services), server)
    pb_grpc.add_ModelServiceServicer_to_server(ModelServicer(services), server)


class GenerationServicer(pb_grpc.GenerationServiceServicer):
    """specdec.gateway.v1.GenerationService."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = Generator(services)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:  # noqa: N802
        """Returns the whole result at once."""
        tokens: list[OutputToken] = []
        started: Started | None = None
        stream = self._generator.stream(_request(request), context.time_remaining())
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case Started():
                        started = event
                    case Round():
                        tokens += event.tokens
                    case Finished() if started is not None:
                        return _whole(started, tokens, event)
        raise InternalError("a generation ended without Finished")

    async def StreamGenerate(  # noqa: N802
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        """Streams one event per round."""
        stream = self._generator.stream(_request(request.request), context.time_remaining())
        async with aclosing(stream) as events:
            async for event in events:
                yield _event(event)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: N802
        """Shows tokens without generating."""
        check_model(request.model, self._services.settings.model.served_name)
        which = request.WhichOneof("input")
        if which is None:
            raise FieldRequired("one of text and chat is required", "input")
        prompt = _chat(request.chat) if which == "chat" else TextPrompt(request.text)
        check_prompt(prompt)
        tokens = await self._services.tokenizer.encode(prompt)
        return pb.TokenizeResponse(token_ids=tokens, context_length=self._services.pool.facts.context_length)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: N802
        """Turns ids back to text."""
        check_model(request.model, self._services.settings.model.served_name)
        check_ids(request.token_ids, "token_ids", self._services.pool.facts.vocab_size)
        return pb.DetokenizeResponse(text=self._services.tokenizer.decode(request.token_ids))


class ModelServicer(pb_grpc.ModelServiceServicer):
    """specdec.gateway.v1.ModelService."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802
        """Lists the models."""
        return pb.ListModelsResponse(models=[self._model()])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        """Describes one model."""
        check_model(request.model, self._services.settings.model.served_name)
        return pb.GetModelResponse(model=self._model())

    def _model(self) -> pb.Model:
        facts = self._services.pool.facts
        return pb.Model(
            id=self._services.settings.model.served_name,
            context_length=facts.context_length,
            vocab_size=facts.vocab_size,
            gamma_max=facts.gamma_max,
            tokenizer_hash=facts.tokenizer_hash,
        )


def _request(message: pb.GenerateRequest) -> GenerationRequest:
    """The value; raises RequestError."""
    ends, speculation = message.stop, message.speculation
    mode = mode_from_pb(speculation.mode, Mode.OFF) if speculation.mode else None
    return GenerationRequest(
        prompt=_prompt(message),
        sampling=_sampling(message.sampling, ends.min_tokens),
        model=message.model,
        max_tokens=ends.max_tokens if ends.HasField("max_tokens") else None,
        stop=tuple(ends.stop),
        stop_token_ids=tuple(ends.stop_token_ids),
        ignore_eos=ends.ignore_eos,
        mode=mode,
        seeded=message.sampling.HasField("seed"),
        gamma=speculation.gamma if speculation.HasField("gamma") else None,
        lenience=speculation.lenience if speculation.HasField("lenience") else 1.0,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        request_id=message.request_id or new_id(),
    )


def _prompt(message: pb.GenerateRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(message.text)
        case "tokens":
            return TokenPrompt(tuple(message.tokens.token_ids))
        case "chat":
            return _chat(message.chat)
    raise FieldRequired("one of text, tokens and chat is required", "prompt")


def _chat(message: pb.ChatPrompt) -> ChatPrompt:
    return ChatPrompt(tuple(Message(turn.role, turn.content) for turn in message.messages))


def _sampling(options: pb.SamplingOptions, min_tokens: int) -> SamplingParams:
    given: dict[str, Any] = {field.name: value for field, value in options.ListFields()}
    given.setdefault("seed", random_seed())
    for name, frozen in (("logit_bias", dict), ("allowed_token_ids", tuple), ("banned_token_ids", tuple)):
        given[name] = frozen(getattr(options, name))
    return SamplingParams(**given, min_tokens=min_tokens)


def _event(event: Event) -> pb.StreamGenerateResponse:
    match event:
        case Started():
            return pb.StreamGenerateResponse(started=_started(event))
        case Round():
            return pb.StreamGenerateResponse(round=_round(event))
        case Finished():
            return pb.StreamGenerateResponse(finished=_finished(event))


def _started(event: Started) -> pb.Started:
    return pb.Started(
        id=event.id,
        model=event.model,
        prompt_token_ids=event.prompt_tokens,
        seed=event.seed,
        system_fingerprint=event.system_fingerprint,
    )


def _round(event: Round) -> pb.Round:
    return pb.Round(
        text=event.text,
        tokens=[_token(token) for token in event.tokens],
        rejected=[pb.RejectedToken(id=token.id, text=token.text) for token in event.rejected],
        drafted=event.drafted,
        accepted=event.accepted,
    )


def _finished(event: Finished) -> pb.Finished:
    return pb.Finished(
        finish_reason=finish_to_pb(event.reason),
        matched_stop=event.matched_stop,
        usage=_usage(event),
        speculation=_summary(event.summary),
    )


def _whole(started: Started, tokens: list[OutputToken], finished: Finished) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        id=started.id,
        model=started.model,
        text="".join(token.text for token in tokens),
        tokens=[_token(token) for token in tokens],
        finish_reason=finish_to_pb(finished.reason),
        usage=_usage(finished),
        speculation=_summary(finished.summary),
        seed=started.seed,
    )


def _token(token: OutputToken) -> pb.CommittedToken:
    logprobs = _logprobs(token.logprobs) if token.logprobs is not None else None
    return pb.CommittedToken(id=token.id, text=token.text, origin=origin_to_pb(token.origin), logprobs=logprobs)


def _logprobs(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=logprobs.logprob,
        top_ids=tokens_to_bytes(token for token, _ in logprobs.top),
        top_logprobs=floats_to_bytes(logprob for _, logprob in logprobs.top),
    )


def _usage(finished: Finished) -> pb.Usage:
    return pb.Usage(prompt_tokens=finished.prompt_tokens, completion_tokens=finished.completion_tokens)


def _summary(summary: Summary) -> pb.SpeculationSummary:
    return pb.SpeculationSummary(
        mode=mode_to_pb(summary.speculation.mode),
        num_spec_steps=summary.num_spec_steps,
        num_spec_tokens=summary.num_spec_tokens,
        num_draft_tokens=summary.num_draft_tokens,
        num_accepted_draft_tokens=summary.num_accepted_draft_tokens,
        draft_acceptance_rate=summary.draft_acceptance_rate,
        mean_acceptance_length=summary.mean_acceptance_length,
        acceptance_histogram=summary.acceptance_histogram,
        num_plain_steps=summary.num_plain_steps,
        fallbacks=dict(summary.fallbacks),
        lenience=summary.speculation.lenience,
        lossy=summary.speculation.lossy,
    )
