"""Stream of one gateway: receives its orders and sends the rounds of its generations in passes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import copy_context

from specdec.errors import DeadlineExceeded, Draining, FieldInvalid, QueueFull
from specdec.serving.rpc.interceptors import ObservedCall
from specdec.serving.rpc.status import status_to_bytes
from specdec.wire.generation import Round
from specdec.wire.passes import Opening, Orders, Pass
from verifier_service.passes.generations import Generations, OpenGeneration
from verifier_service.passes.sequence import Reader

_LONG = 16 * 1024
"""Token ids that are decoded in about half a millisecond."""
_MOST_UNREAD = 16_384
"""Most refusals and errors that a gateway may leave unread. Credit limits the number of unread rounds."""


class GatewayStream:
    """Serves one stream. All methods run on the event loop."""

    def __init__(self, generations: Generations, method: str, heartbeat: float) -> None:
        """Create a stream without generations.

        Args:
            generations: the generations of this process.
            method: name of the RPC, for logs and traces.
            heartbeat: seconds without a pass after which an empty pass is sent as a keep-alive.
        """
        self._generations = generations
        self._method = method
        self._heartbeat = heartbeat
        self._slots: dict[int, _SlotReader] = {}
        """Readers of the running generations, by slot."""
        self._rounds: list[tuple[int, Round]] = []
        self._ended: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._over = False
        self._error: BaseException | None = None

    async def passes(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Execute the orders and yield passes until the orders end. Closing the generator ends all generations.

        Raises:
            SpecdecError: an order is unreadable, the gateway does not read, or the process drains.
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
            for slot in list(self._slots):
                self._cancel(slot)

    def close(self) -> None:
        """End the stream at once."""
        self._over = True
        self._news.set()

    def drain(self) -> None:
        """End the stream after its generations have ended, with an error that makes the gateway use other verifiers."""
        self._error = Draining("the verifier is shutting down")
        self._news.set()

    @property
    def _is_over(self) -> bool:
        return self._over or (self._error is not None and not (self._slots or self._rounds or self._ended))

    def _stop_reading(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            self._error = reading.exception() or self._error
        self.close()

    async def _read(self, orders: AsyncIterator[Orders]) -> None:
        async for each in orders:
            if sum(len(opening.call.tokens) for opening in each.opens) > _LONG:
                await asyncio.sleep(0)  # others run between decoding and opening, which take milliseconds each
            self._follow(each)
            if len(self._ended) > _MOST_UNREAD:
                raise QueueFull("the gateway does not read what became of its generations")

    async def _next(self) -> Pass | None:
        """Wait for the next pass; return an empty one after a heartbeat, or None if there is only a change of state."""
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
            self.end(slot, status_to_bytes(error))
        for opening in orders.opens:
            self._open(opening)
        for slot in orders.cancels:
            self._cancel(slot)
        for slot, length in orders.credits.items():
            if (reader := self._slots.get(slot)) is not None:
                reader.grant(length)

    def _open(self, opening: Opening) -> None:
        slot = opening.slot
        if slot < 0 or slot in self._slots:
            reason = "below 0" if slot < 0 else "in use"
            self.end(slot, status_to_bytes(FieldInvalid(f"slot {slot} is {reason}", "slot")))
            return
        self._slots[slot] = reader = _SlotReader(self, slot, ObservedCall(self._method, opening.metadata))
        reader.open(self._generations, opening)

    def _cancel(self, slot: int) -> None:
        if (reader := self._slots.get(slot)) is not None:
            reader.close()
            self._rounds = [each for each in self._rounds if each[0] != slot]  # the slot may be reused

    def add(self, slot: int, done: Round) -> None:
        """Add a round to the next pass."""
        self._rounds.append((slot, done))
        self._news.set()

    def end(self, slot: int, status: bytes) -> None:
        """Add the error of a failed or refused generation to the next pass."""
        self._ended[slot] = status
        self._news.set()

    def free(self, slot: int) -> None:
        """Free the slot for reuse."""
        del self._slots[slot]
        self._news.set()


class _SlotReader(Reader):
    """Reader of the generation in one slot."""

    def __init__(self, stream: GatewayStream, slot: int, call: ObservedCall) -> None:
        self._stream = stream
        self._slot = slot
        self._call = call
        self._context = copy_context()
        self._context.run(call.__enter__)
        self._sequence: OpenGeneration | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._over = False
        self._inside = False
        """Whether the running code is inside the context of the call."""

    def open(self, generations: Generations, opening: Opening) -> None:
        """Begin the generation; report a refusal as its end."""
        self._inside = True
        try:
            sequence = self._context.run(generations.open, opening.call, self, opening.credit)
        except Exception as error:  # noqa: BLE001 - a refusal must not affect other generations of the stream
            self._inside = False
            self.failed(error)
            return
        self._inside = False
        if not self._over:
            self._sequence = sequence
            if opening.timeout is not None:
                self._deadline = asyncio.get_running_loop().call_later(opening.timeout, self._expire)

    def grant(self, length: int) -> None:
        """Set the sequence length from which on no round of the generation begins."""
        if self._sequence is not None:
            self._sequence.grant(length)

    def add(self, done: Round) -> None:
        self._stream.add(self._slot, done)
        if done.finish is not None:
            self._end()

    def failed(self, error: Exception) -> None:
        if not self._over:
            status = self._call.status(error) if self._inside else self._context.run(self._call.status, error)
            self._stream.end(self._slot, status.SerializeToString())
            self._end()

    def close(self) -> None:
        """End the generation."""
        self._end()
        if self._sequence is not None:
            self._sequence.close()

    def _expire(self) -> None:
        if self._sequence is not None:
            self._sequence.fail(DeadlineExceeded("the time that the generation was given is over"))

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._inside:
            self._call.__exit__()
        else:
            self._context.run(self._call.__exit__)
        if self._deadline is not None:
            self._deadline.cancel()
        self._stream.free(self._slot)
