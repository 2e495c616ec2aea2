"""The gRPC service: the handshake, then one Connection for each verifier."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio
import structlog

from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.connection import Connection, Requests
from drafter_service.sessions.drafter import DrafterInfo
from drafter_service.sessions.worker import Worker
from specdec.errors import DrafterMismatch, Draining, FieldRequired, ProtocolMismatch, TokenizerMismatch
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.protos.drafter.v1 import drafter_pb2_grpc as pb_grpc
from specdec.wire.beams import ask_from_pb, proposal_to_pb
from specdec.wire.draft import PROTOCOL
from specdec.wire.session import VOCABULARY

SERVICE = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name

_log = structlog.get_logger()


class DrafterService(pb_grpc.DrafterServiceServicer):
    """Serves every verifier that has the drafter's tokenizer or sends its own vocabulary."""

    def __init__(self, worker: Worker, metrics: DrafterMetrics) -> None:
        """Serve the drafts of `worker`.

        Args:
            worker: may still be loading its drafter; handshakes wait until it is loaded.
        """
        self._worker = worker
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._connections: set[Connection] = set()

    async def Draft(  # noqa: N802 - gRPC's name
        self, request_iterator: Requests, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.DraftResponse]:
        """Handle one verifier's stream, from its Hello to its end."""
        info = await asyncio.shield(asyncio.wrap_future(self._worker.loaded))
        first = await anext(aiter(request_iterator), None)
        if first is None:
            return
        info = await self._greet(first, info)
        verifier = first.hello.verifier_id
        connection = Connection(next(self._numbers), verifier, self._worker, self._metrics, info.vocabulary)
        # The verifier may disconnect while a frame is being written, when no code of this coroutine runs.
        context.add_done_callback(cast("Any", lambda _: connection.end()))
        self._connections.add(connection)
        try:
            ack = pb.HelloAck(
                model=info.model,
                tokenizer_hash=info.tokenizer_hash,
                step_seconds=info.step_seconds,
                kind=info.kind,
                overlap=info.overlap,
                outcomes=self._worker.outcomes if info.outcomes else 0,
                encoder_decoder=info.encoder_decoder,
                features=info.features,
            )
            connection.send(pb.DraftResponse(hello_ack=ack))
            connection.start(first, request_iterator)
            async for response in connection.responses:
                yield response
        finally:
            self._connections.discard(connection)
            connection.end()

    async def DraftBeams(  # noqa: N802 - gRPC's name
        self, request: pb.DraftBeamsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DraftBeamsResponse:
        """Propose the beams of the next steps of a target's search."""
        await asyncio.shield(asyncio.wrap_future(self._worker.loaded))
        return proposal_to_pb(await asyncio.wrap_future(self._worker.beams(ask_from_pb(request))))

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        pb_grpc.add_DrafterServiceServicer_to_server(self, server)

    def disconnect(self) -> None:
        """End every stream, so the verifiers fail over to other drafters."""
        for connection in list(self._connections):
            connection.responses.close(Draining("the drafter is shutting down"))

    async def _greet(self, first: pb.DraftRequest, info: DrafterInfo) -> DrafterInfo:
        """Check the first frame and set up translation if requested. Return the drafter's info for this verifier.

        Raises:
            FieldRequired: it holds no Hello.
            ProtocolMismatch: the verifier uses another version of the protocol.
            TokenizerMismatch: the verifier could not use the drafts.
        """
        if not first.HasField("hello"):
            raise FieldRequired("the first frame must hold a hello", "hello")
        hello = first.hello
        try:
            _check_protocol(hello)
            info = await self._fitting(hello, info)
            _check_features(hello, info)
        except DrafterMismatch as error:
            self._metrics.refused_streams.labels(error.reason).inc()
            _log.warning("verifier_refused", verifier_id=hello.verifier_id, reason=error.reason, message=error.message)
            raise
        _log.info("verifier_connected", verifier_id=hello.verifier_id, overlap=info.overlap)
        return info

    async def _fitting(self, hello: pb.Hello, info: DrafterInfo) -> DrafterInfo:
        if hello.tokenizer_hash == info.tokenizer_hash:
            return info
        if not hello.HasField("vocabulary"):
            raise TokenizerMismatch(
                f"the drafter's tokenizer is {info.tokenizer_hash}, the target's is {hello.tokenizer_hash}: "
                f"serve a drafter whose tokenizer is the target's, or have the verifier translate "
                f"(drafter_vocabulary: translate)"
            )
        target = await asyncio.to_thread(VOCABULARY.from_pb, hello.vocabulary)
        return await asyncio.wrap_future(self._worker.translate(target))


def _check_features(hello: pb.Hello, info: DrafterInfo) -> None:
    if info.features and hello.features != info.features:
        raise DrafterMismatch(
            f"the drafter reads features {info.features} of its head, the verifier sends "
            f"{hello.features or 'none'}: give both services the same head and the same dtype "
            f"(head of the drafter, drafter_head of the verifier)"
        )


def _check_protocol(hello: pb.Hello) -> None:
    if hello.protocol != PROTOCOL:
        raise ProtocolMismatch(f"the drafter speaks protocol {PROTOCOL}, the verifier {hello.protocol}")
