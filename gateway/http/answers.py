"""From the events of a request to one HTTP answer, whole or as a stream, which ends when its client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from gateway.http import sse
from gateway.http.problems import CLIENT_GONE
from gateway.http.writers import Writer
from gateway.tasks import cancel_and_wait
from gateway.turns.events import Event, Started, collect
from specdec.errors import InternalError

MakeWriter = Callable[[Started], Writer]
"""Makes the writer of an answer once its generation has started."""


async def whole(request: Request, events: AsyncGenerator[Event], make_writer: MakeWriter) -> Response:
    """The answer in one piece."""
    return await _while_connected(request, _whole(events, make_writer))


async def streamed(
    request: Request, events: AsyncGenerator[Event], make_writer: MakeWriter, ping: float, after: Sequence[int] = ()
) -> Response:
    """The answer as a stream; it begins with the first round, so that an error before it has an HTTP status.

    Args:
        request: the request that is answered.
        events: of its generations.
        make_writer: makes the writer of the answer.
        ping: seconds of silence after which a comment is sent.
        after: for each choice, how many output tokens `events` leaves out; empty for none.
    """
    return await _while_connected(request, _streamed(sse.Pending(events), make_writer, ping, after))


def json_response(answer: BaseModel, exclude_unset: bool = False) -> Response:
    """The answer as JSON, with `exclude_unset` without the fields that nobody set."""
    return Response(answer.model_dump_json(exclude_unset=exclude_unset), media_type="application/json")


async def _whole(events: AsyncGenerator[Event], make_writer: MakeWriter) -> Response:
    started, outputs = await collect(events)
    return json_response(make_writer(started).whole(outputs), exclude_unset=True)


async def _streamed(pending: sse.Pending, make_writer: MakeWriter, ping: float, after: Sequence[int]) -> Response:
    try:
        started = await pending.take()
        if not isinstance(started, Started):
            raise InternalError("a generation did not begin with Started")
        if await pending.ready(ping):
            pending.raise_if_failed()
    except BaseException:
        await pending.aclose()
        raise
    return sse.EventStream(pending, sse.stream(pending, make_writer(started), started.turn.name, ping, after))


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response that `work` makes; `work` is cancelled when the client disconnects before that."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        gone.cancel()
        await cancel_and_wait(task)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
