"""The stream of one connected verifier: converts frames from and to protobuf, and passes messages to the worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.stream import MalformedMessage, Message, Reply
from drafter_service.sessions.worker import Worker
from specdec.errors import FieldInvalid, RequestError, SpecdecError
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.wire.draft import DraftTokens, draft_to_pb
from specdec.wire.session import CLOSE, COMMIT, END, LOAD, NACK, OPEN, DraftEnd

T = TypeVar("T")
_LOAD_SECONDS = 1.0
"""Interval between load reports, in seconds."""
_FULL_BYTES = 256 * 1024
"""Maximum size of the queue of a slow verifier, in bytes, before drafting for it pauses."""
_UNTAKEN_FRAMES = 64
"""Number of frames read from one verifier before the worker must catch up."""

Requests = AsyncIterator[pb.DraftRequest]


class Connection:
    """Passes the verifier's messages to the worker, and the worker's replies to gRPC."""

    def __init__(
        self, number: int, verifier_id: str, worker: Worker, metrics: DrafterMetrics, vocabulary: str = ""
    ) -> None:
        """Bind to the running event loop. `number` is unique among the connections of this process."""
        self.number = number
        self.verifier_id = verifier_id
        """Name that the verifier gave itself."""
        self.vocabulary = vocabulary
        """Digest of the vocabulary of the verifier's sessions; empty for the drafter's own."""
        self.responses: SendQueue[pb.DraftResponse] = SendQueue(_FULL_BYTES, worker.wake)
        """Frames to send, in order."""
        self._worker = worker
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False
        metrics.streams.inc()

    @property
    def full(self) -> bool:
        """Whether the verifier reads so slowly that drafting for it should pause."""
        return self.responses.full

    def send(self, response: pb.DraftResponse) -> None:
        """Count a frame and queue it. Thread-safe."""
        size = response.ByteSize()
        self._metrics.frames_sent.inc()
        self._metrics.bytes_sent.inc(size)
        self.responses.put(response, size)

    def deliver(self, replies: Sequence[Reply]) -> None:
        """Encode the replies and queue them as one frame. Called on the worker's thread."""
        self.send(replies_to_pb(replies))

    def start(self, first: pb.DraftRequest, requests: Requests) -> None:
        """Start to read frames. `first` is the frame with the Hello."""
        self._take(first)
        self._tasks = [asyncio.create_task(self._read(requests)), asyncio.create_task(self._report_load())]

    def end(self) -> None:
        """Release all resources. Idempotent."""
        if self._ended:
            return
        self._ended = True
        for task in self._tasks:
            task.cancel()
        self._worker.end_stream(self)
        self._metrics.streams.dec()

    async def _read(self, requests: Requests) -> None:
        """Read frames until the verifier ends its stream or breaks the protocol, then end the responses."""
        try:
            count = 0
            async for request in requests:
                if request.HasField("hello"):
                    raise FieldInvalid("a second hello on one stream", "hello")
                self._take(request)
                count += 1
                if count % _UNTAKEN_FRAMES == 0:
                    await asyncio.wrap_future(self._worker.caught_up())
                await self.responses.room()
        except SpecdecError as error:
            self.responses.close(error)
        else:
            self.responses.close()

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
                self.send(pb.DraftResponse(load=LOAD.to_pb(self._worker.load)))


def messages_from_pb(request: pb.DraftRequest) -> Iterator[Message]:
    """Yield the messages of a frame: opens, then commits, then closes. An unreadable one becomes a MalformedMessage."""
    kinds: tuple[tuple[Callable[[Any], Message], Iterable[Any]], ...] = (
        (OPEN.from_pb, request.opens),
        (COMMIT.from_pb, request.commits),
        (CLOSE.from_pb, request.closes),
    )
    for read, wires in kinds:
        for wire in wires:
            try:
                yield read(wire)
            except RequestError as error:
                yield MalformedMessage(wire.session_id, wire.epoch, error.message)


def replies_to_pb(replies: Iterable[Reply]) -> pb.DraftResponse:
    """Encode all replies as one frame."""
    response = pb.DraftResponse()
    for reply in replies:
        match reply:
            case DraftTokens():
                response.drafts.append(draft_to_pb(reply))
            case DraftEnd():
                response.ends.append(END.to_pb(reply))
            case _:
                response.nacks.append(NACK.to_pb(reply))
    return response


class SendQueue(Generic[T]):
    """A queue whose `put` never blocks. Producers should pause while it is `full`."""

    def __init__(self, limit_bytes: int, on_room: Callable[[], None]) -> None:
        """Bind to the running event loop.

        Args:
            limit_bytes: size of the waiting messages above which the queue is full.
            on_room: callback, run on the loop when a full queue has room again.
        """
        self._loop = asyncio.get_running_loop()
        self._limit = limit_bytes
        self._on_room = on_room
        self._lock = threading.Lock()
        self._waiting: asyncio.Queue[tuple[T, int] | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._error: Exception | None = None

    @property
    def full(self) -> bool:
        return self._bytes > self._limit

    def put(self, message: T, size: int) -> None:
        """Add a message of `size` bytes. Thread-safe."""
        with self._lock:
            self._bytes += size
        self._loop.call_soon_threadsafe(self._add, message, size)

    def close(self, error: Exception | None = None) -> None:
        """End the iteration after the waiting messages, with `error` if given. Must be called on the loop."""
        if not self._closed:
            self._closed, self._error = True, error
            self._loop.call_soon(self._waiting.put_nowait, None)  # after messages put earlier

    async def room(self) -> None:
        await self._room.wait()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (waiting := await self._waiting.get()) is not None:
            message, size = waiting
            self._remove(size)
            yield message
        if self._error is not None:
            raise self._error

    def _add(self, message: T, size: int) -> None:
        self._waiting.put_nowait((message, size))
        if self.full:
            self._room.clear()

    def _remove(self, size: int) -> None:
        with self._lock:
            was_full = self.full
            self._bytes -= size
        if was_full and not self.full:
            self._room.set()
            self._on_room()
