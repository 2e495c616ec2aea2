"""From the events of a generation to one HTTP answer, whole or as a stream, that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from gateway.http import sse
from gateway.http.problems import CLIENT_GONE
from gateway.http.replies import Answer
from gateway.http.writers import Output, Writer
from gateway.tasks import end
from gateway.turns.events import Event, Finished, Round, Started
from specdec.errors import InternalError

WriterOf = Callable[[Started], Writer]


async def whole(request: Request, events: AsyncGenerator[Event], writer_of: WriterOf) -> Response:
    """The answer in one piece."""
    return await _while_connected(request, _whole(sse.Pending(events), writer_of))


async def streamed(
    request: Request, events: AsyncGenerator[Event], writer_of: WriterOf, ping: float, after: Sequence[int] = ()
) -> Response:
    """The answer as a stream; it is not begun before its first round, so that what fails early has a status.

    Args:
        ping: seconds of silence after which a comment is sent.
        after: output tokens of each choice that `events` leaves out.
    """
    return await _while_connected(request, _streamed(sse.Pending(events), writer_of, ping, after))


def json_response(answer: BaseModel) -> Response:
    """A model as it is, without what nobody set."""
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


async def _whole(pending: sse.Pending, writer_of: WriterOf) -> Response:
    async with aclosing(pending):
        started = _as_started(await pending.take())
        return json_response(await _collect(pending, writer_of(started)))


async def _streamed(pending: sse.Pending, writer_of: WriterOf, ping: float, after: Sequence[int]) -> Response:
    try:
        started = _as_started(await pending.take())
        if await pending.ready(ping):
            pending.raise_if_failed()
    except BaseException:
        await pending.aclose()
        raise
    return sse.EventStream(pending, writer_of(started), started, ping, after)


async def _collect(pending: sse.Pending, writer: Writer) -> Answer:
    outputs = [Output() for _ in range(writer.choices)]
    while not all(output.finished for output in outputs):
        match await pending.take():
            case Round() as event:
                outputs[event.choice].tokens += event.tokens
            case Finished() as event:
                outputs[event.choice].finished = event
    return writer.whole(outputs)


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The outcome of `work`, which is cancelled when the client leaves before it is done."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        gone.cancel()
        await end(task)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _as_started(event: Event) -> Started:
    if not isinstance(event, Started):
        raise InternalError("a generation did not begin with Started")
    return event
