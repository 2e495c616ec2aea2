"""gRPC service of a verifier. It converts messages, and refuses calls before the model is loaded and while draining."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from typing_extensions import override

from specdec.errors import Draining, NoVerifier
from specdec.planning.line import Line
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc
from specdec.wire.generation import HEARTBEAT, VerifierInfo, call_from_pb, info_to_pb, round_to_pb
from specdec.wire.kv import pieces, span_from_pb, values_from_pb
from specdec.wire.passes import orders_from_pb, pass_to_pb
from specdec.wire.tokens import tokens_from_bytes
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.sources import DraftSources
from verifier_service.kv.blocks import KvMover
from verifier_service.passes.gateway_stream import GatewayStream
from verifier_service.passes.generations import Generations
from verifier_service.passes.readers import CallReader

SERVICE = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
_SERVE = f"/{SERVICE}/Serve"

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Ready:
    """Parts that serve calls after the model is loaded."""

    info: VerifierInfo
    """Model and limits, without drafters and prefill rate."""
    generations: Generations
    pool: DrafterPool
    sources: DraftSources
    prompts: Line
    """Prompt tokens and seconds of passes with prompts."""
    kv: KvMover


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Servicer that refuses calls before `become_ready` and after `drain`."""

    def __init__(self, heartbeat: float = HEARTBEAT) -> None:
        """Create a servicer; a stream sends a heartbeat after `heartbeat` seconds without a round."""
        self._heartbeat = heartbeat
        self._ready: Ready | None = None
        self._draining = False
        self._streams: set[GatewayStream] = set()

    @property
    def is_ready(self) -> bool:
        """Whether calls are served."""
        return self._ready is not None and not self._draining

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)

    def become_ready(self, ready: Ready) -> None:
        """Serve calls from now on."""
        self._ready = ready

    async def drain(self, limit: float) -> int:
        """Refuse new calls, and wait `limit` seconds for running ones; return the number of calls ended after that."""
        self._draining = True
        ended = await self._ready.generations.drain(limit) if self._ready else 0
        for stream in self._streams:
            stream.drain()
        return ended

    @override
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        """Stream the rounds of one generation."""
        reader = CallReader(self._loaded().generations, call_from_pb(request))
        stop: Any = lambda _: reader.close()  # noqa: E731 - the stubs know no callable that fits
        context.add_done_callback(stop)
        async with aclosing(reader.rounds(self._heartbeat if request.heartbeats else None)) as rounds:
            async for done in rounds:
                yield round_to_pb(done) if done else pb.GenerateResponse(heartbeat=True)

    @override
    async def Serve(
        self, requests: AsyncIterator[pb.ServeRequest], context: Context
    ) -> AsyncIterator[pb.ServeResponse]:
        """Serve all generations of one gateway on one stream."""
        stream = GatewayStream(self._loaded().generations, _SERVE, self._heartbeat)
        self._streams.add(stream)
        stop: Any = lambda _: stream.close()  # noqa: E731 - as above
        context.add_done_callback(stop)
        try:
            async with aclosing(stream.passes(orders_from_pb(each) async for each in requests)) as passes:
                async for done in passes:
                    yield pass_to_pb(done)
        finally:
            self._streams.discard(stream)

    @override
    async def GetVerifierInfo(self, request: pb.GetVerifierInfoRequest, context: Context) -> pb.GetVerifierInfoResponse:
        """Return the model, its limits and the drafters."""
        ready = self._loaded()
        drafters, rate = tuple(ready.pool.states()), ready.prompts.rate
        names = ready.sources.names
        return info_to_pb(replace(ready.info, drafters=drafters, prefill_rate=rate, drafter_names=names))

    @override
    async def FindKv(self, request: pb.FindKvRequest, context: Context) -> pb.FindKvResponse:
        """Return the number of tokens of a sequence that have KV in this process."""
        held = await self._loaded().kv.find(tokens_from_bytes(request.tokens), request.cache_salt)
        return pb.FindKvResponse(held=held)

    @override
    async def ExportKv(self, request: pb.ExportKvRequest, context: Context) -> AsyncIterator[pb.ExportKvResponse]:
        """Stream the framed value of a block."""
        tokens = tokens_from_bytes(request.tokens)
        for piece in pieces(await self._loaded().kv.export(request.start, tokens, request.cache_salt)):
            yield pb.ExportKvResponse(data=piece)

    @override
    async def RestoreKv(self, requests: AsyncIterator[pb.RestoreKvRequest], context: Context) -> pb.RestoreKvResponse:
        """Store the framed values of blocks."""
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
