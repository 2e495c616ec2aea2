"""Converts the events of a request to an HTTP answer, whole or as a stream of server-sent events in OpenAI's format.

Work on an answer stops when its client disconnects. A silent stream sends pings, and an error ends the stream.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

import structlog
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.callers.caller import Share, check_name, place_share
from gateway.http.replies.pieces import json_pieces
from gateway.http.replies.problems import CLIENT_GONE
from gateway.http.replies.tool_writer import ToolChatWriter
from gateway.http.replies.writers import AnswerFormat, ChatWriter, CompletionWriter, Writer
from gateway.request import MAX_CHOICES
from gateway.tasks import CANCEL_AGAIN, cancel_and_wait
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.events import Event, Finished, Output, OutputRound, Started, collect, described_tokens
from gateway.turns.services import Services
from specdec.errors import FieldInvalid, InternalError, SpecdecError
from specdec.serving.rpc.status import logged_error, status_of

_DIGITS = 10
_CURSOR = re.compile(rf"([^.]+)((?:\.[0-9]{{1,9}}){{1,{MAX_CHOICES}}})")
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_PING = b": ping\n"
_LEAST_WAIT = 0.001
"""Least time, in seconds, between two looks for silence."""
_SHARE = "share"
_QUICK_TOKENS = 2048
"""Most tokens described in a whole answer that is written on the event loop; a longer one is written on a thread."""
_QUICK_BYTES = 4096
"""Size of a chunk that is written in much less than a millisecond."""
_log = structlog.get_logger()


def cursor(name: str, positions: Sequence[int]) -> str:
    """Return the id of an event: the generation's name, and the number of output tokens received, by choice."""
    return ".".join((name, *map(str, positions)))


def received(headers: Mapping[str, str], name: str = "") -> tuple[int, ...]:
    """Return the number of output tokens received, by choice, from `Last-Event-ID`; empty without the header.

    Args:
        headers: headers of the request.
        name: name of the requested generation; empty if the request names none.

    Raises:
        FieldInvalid: the id is malformed, or belongs to another generation.
    """
    given = headers.get("last-event-id", "")
    if not given:
        return ()
    match = _CURSOR.fullmatch(given)
    if match is None or name not in ("", match[1]):
        raise FieldInvalid("Last-Event-ID is not the id of an event of this generation", "Last-Event-ID")
    return tuple(map(int, match[2].split(".")[1:]))


def wants_ids(headers: Mapping[str, str]) -> bool:
    """Whether a header asks for event ids: `Specdec-Resumable: true`, or the `Last-Event-ID` of an earlier event.

    Raises:
        FieldInvalid: `Specdec-Resumable` is neither true nor false.
    """
    given = headers.get("specdec-resumable", "false").lower()
    if given not in ("true", "false"):
        raise FieldInvalid("Specdec-Resumable must be true or false", "Specdec-Resumable")
    return given == "true" or "last-event-id" in headers


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the `Idempotency-Key` header, or an empty string. Raises FieldInvalid if it is too long."""
    return check_name(headers.get("idempotency-key", ""), "Idempotency-Key")


def retries(headers: Mapping[str, str]) -> int | None:
    """Return the number of automatic retries, as OpenAI's and Anthropic's clients report it; otherwise None."""
    given = headers.get("x-stainless-retry-count", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < _DIGITS else None


def json_response(answer: BaseModel, exclude_unset: bool = False, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer as JSON; `exclude_unset` omits unset fields."""
    content = answer.model_dump_json(exclude_unset=exclude_unset)
    return Response(content, media_type="application/json", headers=headers)


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response of `work`, which is cancelled if the client disconnects first."""
    with ConnectedClient(request.receive):
        return await work
    return Response(status_code=CLIENT_GONE)


class ConnectedClient:
    """Context of work for a client. If the client disconnects, the work is cancelled and the context ends."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cancellations = 0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise InternalError("an answer is made outside of a task")
        self._task = task
        self._before = task.cancelling()
        self._watch = asyncio.create_task(self._disconnected())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Return whether the exception is the cancellation of a disconnected client's work."""
        self._watch.cancel()
        for _each in range(self._cancellations):
            self._task.uncancel()
        own = self._cancellations > 0 and self._task.cancelling() <= self._before
        return own and kind is not None and issubclass(kind, asyncio.CancelledError)

    async def _disconnected(self) -> None:
        """Cancel the work when the client disconnects, and repeat that until the work ends, because a cancellation may
        be lost."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        while True:
            self._cancellations += 1
            self._task.cancel()
            await asyncio.sleep(CANCEL_AGAIN)


class AnswerWriter(Protocol):
    """Writer of one request's answer in the form of one API."""

    sparse: bool
    """Whether the whole answer omits unset fields."""
    ending: bytes
    """Bytes that end a complete stream."""

    @property
    def choices(self) -> int:
        """Number of generations of the request."""

    @property
    def repeats(self) -> int:
        """Number of the prompt's tokens that the answer repeats."""

    def whole(self, outputs: Sequence[Output]) -> BaseModel:
        """Return the whole answer."""

    def opening(self) -> Iterator[bytes]:
        """Yield the chunks before the first round, as JSON."""

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield the chunks of an event, as JSON."""

    def framed(self, chunk: bytes) -> bytes:
        """Return a chunk as an event of a stream."""

    def failure(self, error: SpecdecError) -> bytes:
        """Return the last event of a failed stream."""


WriterMaker = Callable[[Started, ModelTokenizer], AnswerWriter]
"""Creates the writer of a started request, with the tokenizer of its model."""


async def whole(events: AsyncGenerator[Event], services: Services, make: WriterMaker) -> Response:
    """Return the whole answer as one response; a long one is written in pieces beside the event loop."""
    started, outputs = await collect(events)
    writer = _writer(started, services, make)
    size = writer.repeats + described_tokens(started, outputs)

    def written() -> bytes:
        return b"".join(json_pieces(writer.whole(outputs), writer.sparse))

    if size <= _QUICK_TOKENS:
        content = written()
    else:
        content = await services.beside.run(place_share(started.turn.tenant), written, size)
    return Response(content, media_type="application/json", headers=started.limits)


async def streamed(
    events: AsyncGenerator[Event], services: Services, make: WriterMaker, after: Sequence[int], *, ids: bool
) -> Response:
    """Return the answer as a stream, begun after a first event or a ping: earlier errors have an HTTP status.

    Args:
        events: events of the request.
        services: dependencies of the gateway.
        make: creates the writer of the answer.
        after: number of output tokens that `events` omits, by choice; empty for none.
        ids: whether each event has an id, with which its reader can resume.
    """
    first: asyncio.Task[Event] | None = None
    try:
        started = await anext(events)
        if not isinstance(started, Started):
            raise InternalError("a generation did not begin with Started")
        writer = _writer(started, services, make)
        first = asyncio.ensure_future(anext(events))
        await asyncio.wait({first}, timeout=services.settings.ping)
        if first.done():
            first.result()  # which raises an error of the generation
    except BaseException:
        await _close(events, first)
        raise
    name = started.turn.name if ids else ""
    share = place_share(started.turn.tenant)
    content = _stream(events, first, writer, name, after)
    return EventStream(events, first, content, services.settings.ping, started.limits, share)


async def _close(events: AsyncGenerator[Event], first: asyncio.Task[Event] | None) -> None:
    """Cancel the wait for the first round, and close the events."""
    if first is not None and not (first.done() and not first.cancelled() and first.exception() is None):
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    await events.aclose()


class EventStream(StreamingResponse):
    """Streaming response that ends when its client disconnects, and always closes its events at the end."""

    def __init__(
        self,
        events: AsyncGenerator[Event],
        first: asyncio.Task[Event],
        content: AsyncIterator[bytes],
        ping: float,
        headers: Mapping[str, str],
        share: Share,
    ) -> None:
        """Args: content: bytes made from `events`; first: task of the first round; share: owner of the answer."""
        super().__init__(content, media_type="text/event-stream", headers={**_HEADERS, **headers})
        self._events = events
        self._first = first
        self._ping = ping
        self._share = share
        self._written = 0.0
        """Time of the last write, by `time.monotonic`."""
        self._comment: asyncio.Task[None] | None = None
        """Task that sends the last comment; None before the first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_share(scope, self._share)
        try:
            with ConnectedClient(receive):
                await self.stream_response(send)
        finally:
            await _close(self._events, self._first)

    async def stream_response(self, send: Send) -> None:
        """Send the content, with comments during silence."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._written = time.monotonic()
        self._wait_for_silence(send)
        try:
            async for chunk in self.body_iterator:
                self._written = time.monotonic()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if len(chunk) > _QUICK_BYTES:
                    await asyncio.sleep(0)  # the next chunk may be long, too
        finally:
            self._timer.cancel()
            if self._comment is not None:
                await cancel_and_wait(self._comment)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _wait_for_silence(self, send: Send) -> None:
        """Send a comment after every `ping` seconds of silence. Each write is whole lines, so a comment splits none."""
        now = time.monotonic()
        if now - self._written >= self._ping and (self._comment is None or self._comment.done()):
            self._written = now
            self._comment = asyncio.create_task(_send_comment(send))
        rest = max(self._written + self._ping - now, _LEAST_WAIT)
        self._timer = asyncio.get_running_loop().call_later(rest, self._wait_for_silence, send)


async def _send_comment(send: Send) -> None:
    await send({"type": "http.response.body", "body": _PING, "more_body": True})


async def _stream(
    events: AsyncGenerator[Event], first: asyncio.Task[Event], writer: AnswerWriter, name: str, after: Sequence[int]
) -> AsyncIterator[bytes]:
    """Yield the bytes of the answer, from the first chunk to [DONE]; an error ends it without [DONE].

    Args:
        events: events after the first round.
        first: task of the first round.
        writer: writer of the answer.
        name: public id of the generation, for event ids; empty for events without ids.
        after: number of output tokens that the client already has, by choice; empty if it has none.
    """
    positions = list(after) or [0] * writer.choices
    try:
        for chunk in writer.opening() if not any(positions) else ():
            yield _id(name, positions) + writer.framed(chunk)
        running, event = writer.choices, await first
        while True:
            running -= isinstance(event, Finished)
            if isinstance(event, OutputRound):
                positions[event.choice] += len(event.tokens)
            for chunk in writer.chunks(event):
                yield _id(name, positions) + writer.framed(chunk)
            if not running:
                break
            event = await anext(events)
        yield writer.ending
    except SpecdecError as error:
        log = _log.warning if status_of(error).http >= 500 else _log.info
        log("stream_failed", **logged_error(error))
        yield writer.failure(error)
    except Exception as error:  # noqa: BLE001 - the headers are sent, so only the stream can report it
        _log.error("stream_failed", exc_info=error)
        yield writer.failure(InternalError("internal error; the log knows more under this answer's x-request-id"))


def writer_for(started: Started, tokenizer: ModelTokenizer, answer_format: AnswerFormat | None) -> Writer:
    """Create a writer for the answer format; None uses the format stored with the generation."""
    chosen = answer_format or AnswerFormat.parse(started.header.answer_format)
    if started.header.reading:
        return ToolChatWriter(started, chosen, tokenizer)
    return (ChatWriter if chosen.chat else CompletionWriter)(started, chosen, tokenizer)


def _writer(started: Started, services: Services, make: WriterMaker) -> AnswerWriter:
    """Create the writer of a generation, with the tokenizer of its model."""
    return make(started, services.models.of_turn(started.header.model).tokenizer)


def _id(name: str, positions: Sequence[int]) -> bytes:
    return f"id: {cursor(name, positions)}\n".encode() if name else b""


def note_share(scope: Scope, share: Share) -> None:
    """Record the owner of a request's answer when its user is known."""
    scope.setdefault("state", {})[_SHARE] = share


def answered_share(scope: Mapping[str, Any]) -> Share:
    """Return the recorded owner of a request's answer, or its address."""
    noted: Share | None = scope.get("state", {}).get(_SHARE)
    return noted or Share((scope.get("client") or ("",))[0])
