"""An answer as a stream of server-sent events, as OpenAI's clients read it: pinged in silence, ended by an error."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.http.cursor import cursor
from gateway.http.problems import error_body
from gateway.http.replies import Answer
from gateway.http.writers import Writer
from gateway.turns.events import Event, Finished, OutputRound
from specdec.errors import InternalError, SpecdecError

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_PING = b": ping\n\n"
_DONE = b"data: [DONE]\n\n"
_log = structlog.get_logger()


class Pending:
    """The events of a generation; waiting for the next one can time out without losing it."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._events = events
        self._next: asyncio.Task[Event] | None = None

    async def ready(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; returns whether the next event, or the end, is known."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._events))
        await asyncio.wait({self._next}, timeout=timeout)
        return self._next.done()

    async def take(self) -> Event:
        """The next event.

        Raises:
            StopAsyncIteration: the events have ended.
            SpecdecError: the generation failed.
        """
        task, self._next = self._next or asyncio.ensure_future(anext(self._events)), None
        return await task

    def raise_if_failed(self) -> None:
        """Raise the error that `take` would raise, if it is known already."""
        if self._next is not None and self._next.done() and (error := self._next.exception()) is not None:
            raise error

    async def aclose(self) -> None:
        """Stop waiting, and close the events."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._events.aclose()


class EventStream(StreamingResponse):
    """The response of a stream; its events are closed when it ends, for whatever reason."""

    def __init__(self, pending: Pending, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=_HEADERS)
        self._pending = pending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pending):
            await super().__call__(scope, receive, send)


async def stream(
    pending: Pending, writer: Writer, name: str, ping: float, after: Sequence[int]
) -> AsyncIterator[bytes]:
    """The bytes of the answer, from the first chunk to [DONE]; an error ends it without [DONE].

    Args:
        pending: the events after Started.
        writer: makes the chunks.
        name: public id of the generation.
        ping: seconds of silence after which a comment is sent.
        after: for each choice, how many output tokens the client has already; empty when it has none.
    """
    positions = list(after) or [0] * writer.choices
    try:
        for chunk in writer.opening() if not any(positions) else ():
            yield _event(name, positions, chunk)
        running = writer.choices
        while running:
            while not await pending.ready(ping):
                yield _PING
            event = await pending.take()
            running -= isinstance(event, Finished)
            if isinstance(event, OutputRound):
                positions[event.choice] += len(event.tokens)
            for chunk in _chunks(writer, event):
                yield _event(name, positions, chunk)
        yield _DONE
    except SpecdecError as error:
        _log.info("stream_failed", reason=error.reason, message=error.message)
        yield _failure(error)
    except Exception as error:  # noqa: BLE001 - the headers are sent, so that only the stream can say it
        _log.error("stream_failed", exc_info=error)
        yield _failure(InternalError("internal error; the log knows more under this answer's x-request-id"))


def _chunks(writer: Writer, event: Event) -> Iterator[Answer]:
    match event:
        case OutputRound():
            return writer.round(event)
        case Finished():
            return writer.closing(event)
    return iter(())


def _event(name: str, positions: Sequence[int], chunk: Answer) -> bytes:
    return f"id: {cursor(name, positions)}\ndata: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()


def _failure(error: SpecdecError) -> bytes:
    return f"data: {error_body(error).model_dump_json()}\n\n".encode()
