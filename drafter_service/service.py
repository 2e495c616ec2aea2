"""The gRPC face: protobuf in and out, the handshake, and nothing that decides about tokens."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

import grpc.aio
import structlog

from drafter_service.drafters.base import DrafterInfo
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.messages import Frame, Load, Malformed, Message, Nack, Reason
from drafter_service.sessions.outbox import Outbox
from drafter_service.sessions.worker import Worker
from protos.drafter.v1 import drafter_pb2 as pb
from protos.drafter.v1 import drafter_pb2_grpc as pb_grpc
from specdec.errors import (
    DrafterMismatch,
    Draining,
    FieldInvalid,
    FieldRequired,
    ProtocolMismatch,
    RequestError,
    SpecdecError,
    TokenizerMismatch,
)
from specdec.wire.draft import PROTOCOL, draft_to_pb
from specdec.wire.session import close_from_pb, commit_from_pb, open_from_pb

SERVICE = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name

_LOAD_SECONDS = 1.0
_FULL_BYTES = 256 * 1024
"""What may wait for a verifier that does not read before nothing more is drafted for it."""
_UNSETTLED_FRAMES = 64
"""Frames of one verifier that are read before the worker must have taken them."""

_REASONS: dict[Reason, pb.Nack.Reason.ValueType] = {
    Reason.UNKNOWN: pb.Nack.REASON_UNKNOWN,
    Reason.STALE: pb.Nack.REASON_STALE,
    Reason.OVERLOADED: pb.Nack.REASON_OVERLOADED,
    Reason.MALFORMED: pb.Nack.REASON_MALFORMED,
    Reason.INTERNAL: pb.Nack.REASON_INTERNAL,
}

Requests = AsyncIterator[pb.DraftRequest]
_Wire = pb.Open | pb.Commit | pb.Close

_log = structlog.get_logger()


class DrafterService(pb_grpc.DrafterServiceServicer):
    """Serves every verifier that has the drafter's tokenizer."""

    def __init__(self, worker: Worker, metrics: DrafterMetrics, incarnation: str) -> None:
        """Serve what `worker` drafts.

        Args:
            worker: need not have loaded its drafter yet; handshakes wait for it.
            metrics: where to count.
            incarnation: different for every start of the process.
        """
        self._worker = worker
        self._metrics = metrics
        self._incarnation = incarnation
        self._numbers = itertools.count(1)
        self._connections: set[_Connection] = set()

    async def Draft(  # noqa: N802 - gRPC's name
        self, request_iterator: Requests, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.DraftResponse]:
        """One verifier's stream, from its Hello to its end."""
        info = await asyncio.shield(asyncio.wrap_future(self._worker.loaded))
        first = await anext(aiter(request_iterator), None)
        if first is None:
            return
        self._greet(first, info)
        connection = _Connection(next(self._numbers), self._worker, self._metrics)
        # The verifier may go while a frame is being written, when nothing here is running.
        context.add_done_callback(cast("Any", connection.ended))
        self._connections.add(connection)
        try:
            connection.send(self._hello_ack(info))
            connection.start(first, request_iterator)
            async for frame in connection.outbox:
                yield frame
        finally:
            self._connections.discard(connection)
            connection.end()

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        pb_grpc.add_DrafterServiceServicer_to_server(self, server)

    def disconnect(self) -> None:
        """Tell every verifier to go on elsewhere."""
        for connection in list(self._connections):
            connection.outbox.close(Draining("the drafter is shutting down"))

    def _greet(self, first: pb.DraftRequest, info: DrafterInfo) -> None:
        """Check the first frame.

        Raises:
            FieldRequired: it holds no Hello.
            ProtocolMismatch: the verifier's messages would not be understood.
            TokenizerMismatch: the drafts could not be used.
        """
        if not first.HasField("hello"):
            raise FieldRequired("the first frame must hold a hello", "hello")
        hello = first.hello
        try:
            _check_hello(hello, info)
        except DrafterMismatch as error:
            self._metrics.refused_streams.labels(error.reason).inc()
            _log.warning("verifier_refused", verifier_id=hello.verifier_id, reason=error.reason, message=error.message)
            raise
        _log.info("verifier_connected", verifier_id=hello.verifier_id)

    def _hello_ack(self, info: DrafterInfo) -> pb.DraftResponse:
        ack = pb.HelloAck(incarnation=self._incarnation, model=info.model, tokenizer_hash=info.tokenizer_hash)
        ack.step_seconds = info.step_seconds
        return pb.DraftResponse(hello_ack=ack)


class _Connection:
    """One verifier's stream while it lasts; what the worker knows as a Stream."""

    def __init__(self, number: int, worker: Worker, metrics: DrafterMetrics) -> None:
        self.number = number
        self.outbox: Outbox[pb.DraftResponse] = Outbox(_FULL_BYTES, worker.wake)
        self._worker = worker
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False
        metrics.streams.inc()

    @property
    def full(self) -> bool:
        """Whether the verifier is slow to read."""
        return self.outbox.full

    def send(self, response: pb.DraftResponse) -> None:
        """Count, and put in the outbox; from any thread."""
        self._metrics.frames_sent.inc()
        self._metrics.bytes_sent.inc(response.ByteSize())
        self.outbox.put(response)

    def deliver(self, frame: Frame) -> None:
        """Encode, on the worker's thread, and put in the outbox."""
        self.send(frame_to_pb(frame))

    def start(self, first: pb.DraftRequest, requests: Requests) -> None:
        """Begin to read; `first` is the frame that held the Hello."""
        self._take(first)
        self._tasks = [asyncio.create_task(self._read(requests)), asyncio.create_task(self._report_load())]

    def ended(self, _: object) -> None:
        """The verifier is gone."""
        self.end()

    def end(self) -> None:
        """Release everything; a second time does nothing."""
        if self._ended:
            return
        self._ended = True
        for task in self._tasks:
            task.cancel()
        self._worker.end_stream(self)
        self._metrics.streams.dec()

    async def _read(self, requests: Requests) -> None:
        """Take frames until the verifier has no more, or breaks the protocol."""
        try:
            count = 0
            async for request in requests:
                if request.HasField("hello"):
                    raise FieldInvalid("a second hello on one stream", "hello")
                self._take(request)
                count += 1
                if count % _UNSETTLED_FRAMES == 0:
                    await asyncio.wrap_future(self._worker.settled())
                await self.outbox.room()
        except SpecdecError as error:
            self.outbox.close(error)
        else:
            self.outbox.close()

    def _take(self, request: pb.DraftRequest) -> None:
        if request.HasField("ping"):
            self.send(pb.DraftResponse(pong=pb.Pong(nonce=request.ping.nonce)))
        messages = list(messages_from_pb(request))
        if messages:
            self._worker.post(self, messages)

    async def _report_load(self) -> None:
        while True:
            await asyncio.sleep(_LOAD_SECONDS)
            if not self.full:
                self.send(_load_to_pb(self._worker.load()))


def messages_from_pb(request: pb.DraftRequest) -> Iterator[Message]:
    """The frame's messages in the order in which they count; one that cannot be read becomes a Malformed."""
    wires: Iterable[_Wire] = itertools.chain(request.opens, request.commits, request.closes)
    for wire in wires:
        try:
            yield _message_from_pb(wire)
        except RequestError as error:
            yield Malformed(wire.session_id, wire.epoch, error.message)


def frame_to_pb(frame: Frame) -> pb.DraftResponse:
    """Pack one step's worth."""
    return pb.DraftResponse(
        drafts=[draft_to_pb(draft) for draft in frame.drafts],
        ends=[pb.DraftEnd(session_id=end.session_id, epoch=end.epoch, base_len=end.base_len) for end in frame.ends],
        nacks=[_nack_to_pb(nack) for nack in frame.nacks],
    )


def _load_to_pb(load: Load) -> pb.DraftResponse:
    return pb.DraftResponse(load=pb.Load(sessions=load.sessions, step_seconds=load.step_seconds))


def _check_hello(hello: pb.Hello, info: DrafterInfo) -> None:
    if hello.protocol != PROTOCOL:
        raise ProtocolMismatch(f"the drafter speaks protocol {PROTOCOL}, the verifier {hello.protocol}")
    if hello.tokenizer_hash != info.tokenizer_hash:
        raise TokenizerMismatch(
            f"the drafter's tokenizer is {info.tokenizer_hash}, the target's is {hello.tokenizer_hash}: "
            f"serve a drafter whose tokenizer is the target's"
        )


def _message_from_pb(wire: _Wire) -> Message:
    match wire:
        case pb.Open():
            return open_from_pb(wire)
        case pb.Commit():
            return commit_from_pb(wire)
        case _:
            return close_from_pb(wire)


def _nack_to_pb(nack: Nack) -> pb.Nack:
    return pb.Nack(session_id=nack.session_id, epoch=nack.epoch, reason=_REASONS[nack.reason], detail=nack.detail)
