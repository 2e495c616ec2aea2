"""The gRPC face: protobuf in, a Job; Rounds out, protobuf. Nothing else happens here."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio
from typing_extensions import override

from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1 import verifier_pb2_grpc
from specdec.errors import Draining, NoVerifier
from specdec.rules.params import Mode, Speculation
from specdec.wire.logprobs import logprobs_to_pb
from specdec.wire.params import finish_to_pb, mode_from_pb, origin_to_pb, sampling_from_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from verifier_service.batching.costs import PassCost
from verifier_service.drafters.pool import DrafterPool
from verifier_service.generation.generations import Generations
from verifier_service.generation.job import Job, Limits
from verifier_service.generation.rounds import Round
from verifier_service.kv.blocks import KvBlocks
from verifier_service.kv.wire import PIECE_BYTES, span_from_pb, values_from_pb

SERVICE = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """What callers are told of the target."""

    name: str
    tokenizer_hash: str
    limits: Limits
    end_token_ids: tuple[int, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Ready:
    """What there is once the model is loaded."""

    model: Model
    desk: Generations
    pool: DrafterPool
    passes: PassCost
    kv: KvBlocks


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Refuses calls until it is made ready."""

    def __init__(self, default_mode: Mode) -> None:
        self._default_mode = default_mode
        self._ready: Ready | None = None
        self._draining = False

    @property
    def is_ready(self) -> bool:
        """Whether calls are served."""
        return self._ready is not None and not self._draining

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)

    def become_ready(self, ready: Ready) -> None:
        """Serve from now on."""
        self._ready = ready

    async def drain(self, limit: float) -> int:
        """Refuse new calls, and give running ones `limit` seconds; how many had to be ended."""
        self._draining = True
        return await self._ready.desk.drain(limit) if self._ready else 0

    @override
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        """Stream the rounds of one generation."""
        run = self._loaded().desk.start(_job_from_pb(request, self._default_mode))
        stop: Any = lambda _: run.cancel()  # noqa: E731 - the stubs know no callable that fits
        context.add_done_callback(stop)
        async with aclosing(run.rounds()) as rounds:
            async for done in rounds:
                yield _round_to_pb(done)

    @override
    async def GetVerifierInfo(self, request: pb.GetVerifierInfoRequest, context: Context) -> pb.GetVerifierInfoResponse:
        """Describe the model, its limits and the drafters."""
        ready = self._loaded()
        model, limits = ready.model, ready.model.limits
        drafters = [pb.DrafterState(address=s.address, state=s.state, model=s.model) for s in ready.pool.statuses()]
        return pb.GetVerifierInfoResponse(
            model=model.name,
            tokenizer_hash=model.tokenizer_hash,
            vocab_size=limits.vocab_size,
            context_length=limits.context_length,
            end_token_ids=model.end_token_ids,
            gamma_max=limits.gamma_max,
            drafters=drafters,
            system_fingerprint=model.fingerprint,
            prefill_rate=ready.passes.prefill_rate(),
        )

    @override
    async def FindKv(self, request: pb.FindKvRequest, context: Context) -> pb.FindKvResponse:
        """Say how much of a sequence is here."""
        held = await self._loaded().kv.find(tokens_from_bytes(request.tokens), request.cache_salt)
        return pb.FindKvResponse(held=held)

    @override
    async def ExportKv(self, request: pb.ExportKvRequest, context: Context) -> AsyncIterator[pb.ExportKvResponse]:
        """Stream the value of a block."""
        tokens = tokens_from_bytes(request.tokens)
        value = await self._loaded().kv.export(request.start, tokens, request.cache_salt)
        for begin in range(0, len(value), PIECE_BYTES):
            yield pb.ExportKvResponse(data=value[begin : begin + PIECE_BYTES])

    @override
    async def RestoreKv(self, requests: AsyncIterator[pb.RestoreKvRequest], context: Context) -> pb.RestoreKvResponse:
        """Take the values of blocks."""
        kv = self._loaded().kv
        first = await anext(requests, pb.RestoreKvRequest())
        span = span_from_pb(first.span)
        values = values_from_pb(first, requests, len(span.ends), kv.longest_value(span.block_tokens))
        restored = await kv.restore(span, values)
        return pb.RestoreKvResponse(held=restored.held, miss=restored.miss)

    def _loaded(self) -> Ready:
        if self._draining:
            raise Draining("the verifier is shutting down")
        if self._ready is None:
            raise NoVerifier("the model is still being loaded")
        return self._ready


def _job_from_pb(request: pb.GenerateRequest, default_mode: Mode) -> Job:
    speculation = request.speculation
    return Job(
        session_id=request.session_id,
        epoch=request.epoch,
        tokens=tuple(tokens_from_bytes(request.tokens)),
        prompt_len=request.prompt_len,
        params=sampling_from_pb(request.sampling),
        max_tokens=request.max_tokens,
        end_ids=frozenset(request.stop_token_ids),
        speculation=Speculation(
            mode=mode_from_pb(speculation.mode) if speculation.mode else default_mode,
            gamma=speculation.gamma if speculation.HasField("gamma") else None,
            lenience=speculation.lenience if speculation.HasField("lenience") else 1.0,
        ),
        logprobs=request.logprobs if request.HasField("logprobs") else None,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _round_to_pb(done: Round) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        base_len=done.base_len,
        tokens=tokens_to_bytes(done.tokens),
        origins=[origin_to_pb(origin) for origin in done.origins],
        draft_tokens=tokens_to_bytes(done.draft),
        accepted=done.accepted,
        finish_reason=finish_to_pb(done.finish),
        fallback_reason=done.fallback.value,
        timing=pb.RoundTiming(draft=done.timing.draft, queue=done.timing.queue, verify=done.timing.verify),
        logprobs=logprobs_to_pb(done.logprobs),
    )
