"""Bodies of all callers: how many bytes of them are held at once, and where the large ones are read."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from starlette.requests import Request

from gateway.admission import FairQueue
from gateway.callers.caller import Share, calling_tenant, place_share
from gateway.http.requests.body import Body, body_chunks, is_quick, parse_json, read_body
from gateway.workers.process import WorkerLate, WorkerLost, WorkerProcess
from specdec.errors import FieldInvalid, QueueFull

_BodyType = TypeVar("_BodyType", bound=Body)
_Result = TypeVar("_Result")

_UNIT = 64 * 1024
"""Bytes of a body for which it takes a place; smaller bodies need none."""
_PLACES = 4096
"""Places for large bodies: 256 MiB, of which a caller may have a part. A body has them until its answer ends."""
_WAITING = 1024
"""Most large bodies that wait for places, and for the worker."""
_SECONDS = 5.0
"""Longest time in which a body is read, from JSON to checked fields."""


class BodyReader:
    """Reads bodies: small ones at once, large ones in a worker that callers have in turn."""

    def __init__(self, limit: int, patience: float) -> None:
        """Refuse bodies of more than `limit` bytes, and large ones that wait longer than `patience` seconds."""
        self._limit = limit
        self._patience = patience
        self._places = FairQueue("large bodies", max(_PLACES, _units(limit)), _WAITING)
        self._turns = FairQueue("large bodies", 1, _WAITING)
        self._worker = WorkerProcess("gateway.http.requests.body_worker")

    async def read(self, request: Request, kind: type[_BodyType]) -> _BodyType:
        """The checked body of a request.

        Raises:
            RequestError: the body is too large, or a field of it is wrong.
            QueueFull: too many large bodies are on their way.
        """
        encoded = "content-encoding" in request.headers  # then the length says little of the body
        share, length = place_share(calling_tenant()), None if encoded else request.headers.get("content-length")
        async with AsyncExitStack() as stack:
            chunks = self._let_in(body_chunks(request), share, length, request.state.at_end)
            raw = await read_body(chunks, length, self._limit)
            request.state.large_body = not is_quick(raw)
            if not request.state.large_body:
                return kind.parse(parse_json(raw))
            await self._enter(self._turns, share, 1)
            stack.callback(self._turns.leave, share)
            return await self._read(kind, raw)

    async def convert(self, request: Request, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, which converts the body that was read; of a large one on a thread, callers in turn.

        Raises:
            RequestError: `work` refuses the body.
            QueueFull: too many large bodies are on their way.
        """
        if not request.state.large_body:
            return work()
        share = place_share(calling_tenant())
        await self._enter(self._turns, share, 1)
        try:
            return await asyncio.to_thread(work)
        finally:
            self._turns.leave(share)

    async def close(self) -> None:
        """End the worker."""
        await self._worker.close()

    async def _let_in(
        self, chunks: AsyncIterator[bytes], share: Share, length: str | None, at_end: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """Yield the chunks of a body. After the first unit, wait for places for its declared size."""
        size, held = 0, False
        async for chunk in chunks:
            size += len(chunk)
            if size > _UNIT and not held:
                declared = int(length) if length and length.isdecimal() else self._limit
                places, held = _units(min(declared, self._limit)), True
                await self._enter(self._places, share, places)
                at_end.callback(self._places.leave, share, places)
            yield chunk

    async def _enter(self, queue: FairQueue, share: Share, places: int) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await queue.enter(share, places)
        except TimeoutError as error:
            raise QueueFull(f"too many large bodies came for {self._patience:g} s") from error

    async def _read(self, kind: type[_BodyType], raw: bytes) -> _BodyType:
        try:
            answer = await self._worker.ask(pickle.dumps((kind, raw)), _SECONDS)
        except WorkerLost as error:
            self._worker.warm()
            how = "takes too long to be read" if isinstance(error, WorkerLate) else "cannot be read"
            raise FieldInvalid(f"the body {how}") from error
        read = await asyncio.to_thread(pickle.loads, answer)
        if isinstance(read, kind):
            return read
        refused, message, param = read
        raise refused(message, param)


def _units(size: int) -> int:
    return -(-size // _UNIT)
