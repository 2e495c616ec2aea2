"""The generations of one gateway: its orders come in, and what each turn of the event loop made of them goes out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from google.rpc import status_pb2

from specdec.errors import DeadlineExceeded, Draining, FieldInvalid, QueueFull
from specdec.serving.interceptors import observed
from specdec.serving.status import status_to_bytes
from specdec.wire.generation import Round
from specdec.wire.passes import Opening, Orders, Pass
from verifier_service.generation.credit import Credit
from verifier_service.generation.generations import Generations

_MOST_UNREAD = 16_384
"""Refusals that a gateway may leave unread. Rounds need no limit of their own: credit bounds them."""


class GatewayStream:
    """Serves one stream; all on the event loop."""

    def __init__(self, generations: Generations, method: str, heartbeat: float) -> None:
        """Make a stream without generations.

        Args:
            method: name of the RPC, for logs and traces.
            heartbeat: seconds without a pass after which an empty one says that the stream lives.
        """
        self._generations = generations
        self._method = method
        self._heartbeat = heartbeat
        self._credits: dict[int, Credit] = {}
        """Of the generations that run, by slot."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By slot."""
        self._ending: set[asyncio.Task[None]] = set()
        """Of generations that were cancelled."""
        self._rounds: list[tuple[int, Round]] = []
        self._ended: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._over = False
        self._error: BaseException | None = None

    async def passes(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Follow the orders and yield passes until they end; their end, and leaving early, ends all generations.

        Raises:
            SpecdecError: an order cannot be read, the gateway reads nothing, or the process drains.
        """
        reading = asyncio.create_task(self._read(orders))
        reading.add_done_callback(self._stop_reading)
        try:
            while not self._is_over:
                if (done := await self._next()) is not None:
                    yield done
            if self._error is not None:
                raise self._error
        finally:
            reading.cancel()
            for slot in list(self._tasks):
                self._cancel(slot)
            if self._ending:
                await asyncio.wait(self._ending)

    def close(self) -> None:
        """End the stream at once: nobody reads it any more."""
        self._over = True
        self._news.set()

    def drain(self) -> None:
        """End the stream once its generations have ended, with an error that makes its gateway go elsewhere."""
        self._error = Draining("the verifier is shutting down")
        self._news.set()

    @property
    def _is_over(self) -> bool:
        return self._over or (self._error is not None and not (self._tasks or self._rounds or self._ended))

    def _stop_reading(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            self._error = reading.exception() or self._error
        self.close()

    async def _read(self, orders: AsyncIterator[Orders]) -> None:
        async for each in orders:
            self._follow(each)
            if len(self._ended) > _MOST_UNREAD:
                raise QueueFull("the gateway does not read what became of its generations")

    async def _next(self) -> Pass | None:
        """All that has come since the last pass, empty after a heartbeat without any; None where only the end came."""
        try:
            async with asyncio.timeout(self._heartbeat):
                await self._news.wait()
        except TimeoutError:
            return Pass()
        self._news.clear()
        if not (self._rounds or self._ended):
            return None
        done = Pass(self._rounds, self._ended)
        self._rounds, self._ended = [], {}
        return done

    def _follow(self, orders: Orders) -> None:
        for slot, error in orders.unreadable.items():
            self._end(slot, status_to_bytes(error))
        for opening in orders.opens:
            self._open(opening)
        for slot in orders.cancels:
            self._cancel(slot)
        for slot, length in orders.credits.items():
            if (credit := self._credits.get(slot)) is not None:
                credit.grant(length)

    def _open(self, opening: Opening) -> None:
        slot, credit = opening.slot, Credit(opening.credit)
        if slot < 0 or slot in self._tasks:
            reason = "below 0" if slot < 0 else "in use"
            self._end(slot, status_to_bytes(FieldInvalid(f"slot {slot} is {reason}", "slot")))
            return
        self._credits[slot] = credit
        self._tasks[slot] = asyncio.create_task(self._carry(opening, credit))

    def _cancel(self, slot: int) -> None:
        if (task := self._free(slot)) is not None:
            task.cancel()
            self._rounds = [each for each in self._rounds if each[0] != slot]  # the slot may be used again

    def _free(self, slot: int) -> asyncio.Task[None] | None:
        """Let the slot be used again; the task that had it goes on until it has ended."""
        if (task := self._tasks.pop(slot, None)) is not None:
            del self._credits[slot]
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._news.set()
        return task

    async def _carry(self, opening: Opening, credit: Credit) -> None:
        """Carry the rounds of one generation, from its opening to its end."""
        slot = opening.slot

        async def fail(status: status_pb2.Status) -> None:
            if self._tasks.get(slot) is asyncio.current_task():
                self._free(slot)
                self._end(slot, status.SerializeToString())

        async with observed(self._method, opening.metadata, fail):
            await self._generate(opening, credit)

    async def _generate(self, opening: Opening, credit: Credit) -> None:
        limit = asyncio.timeout(opening.timeout)
        try:
            async with limit, aclosing(self._generations.start(opening.call, credit).rounds()) as rounds:
                async for done in rounds:
                    if done is not None:
                        self._add(opening.slot, done)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the time that the generation was given is over") from error

    def _add(self, slot: int, done: Round) -> None:
        self._rounds.append((slot, done))
        self._news.set()
        if done.finish is not None:
            self._free(slot)

    def _end(self, slot: int, status: bytes) -> None:
        self._ended[slot] = status
        self._news.set()
