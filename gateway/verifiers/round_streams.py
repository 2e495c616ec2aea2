"""Gateway's side of hop 1: one stream of rounds for all its generations at one verifier.

A generation is a slot of a stream. The gateway sends orders for slots, and `arrivals` collects the results. A verifier
of the previous release has no such stream: `CallStream` calls its Generate for each slot.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from gateway.tasks import cancel_and_wait
from specdec.errors import InternalError, NoVerifier, SpecdecError
from specdec.serving.rpc.status import error_from_bytes
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.passes import Opening, Orders, Pass


class RoundCaller(Protocol):
    """Hop 1 calls of a verifier client."""

    address: str

    def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Yield one message per pass for all generations that the orders open."""

    def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """Yield the rounds of one generation."""


class Arrivals:
    """Received rounds and ends of generations that were not taken yet. Credit bounds their number."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[Round]] = {}
        self._ended: dict[int, SpecdecError] = {}
        self._news = asyncio.Event()
        self._lost: SpecdecError | None = None

    def add(self, rounds: Sequence[tuple[int, Round]], ended: Mapping[int, SpecdecError]) -> None:
        """Add rounds and failures by slot."""
        for slot, verified in rounds:
            self._rounds.setdefault(slot, []).append(verified)
        self._ended |= ended
        self._news.set()

    def lose(self, error: SpecdecError) -> None:
        """Mark the stream as lost."""
        self._lost = error
        self._news.set()

    async def take(self) -> tuple[Mapping[int, Sequence[Round]], Mapping[int, SpecdecError]]:
        """Wait for arrivals and take them all: the rounds of each slot in order, and the error of each failed slot.

        Raises:
            SpecdecError: the stream is lost, and all earlier arrivals were taken.
        """
        while not (self._rounds or self._ended):
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        rounds, self._rounds = self._rounds, {}
        ended, self._ended = self._ended, {}
        return rounds, ended


class RoundStream(Protocol):
    """Stream with slots."""

    arrivals: Arrivals

    def open(self, opening: Opening) -> None:
        """Start a generation in an unused slot."""

    def credit(self, slot: int, length: int) -> None:
        """Allow the sequence of a slot to grow to `length` tokens."""

    def cancel(self, slot: int) -> None:
        """End the generation of a slot."""

    async def close(self) -> None:
        """End all generations."""


class PassStream:
    """Stream of a verifier that sends passes. Orders of one event loop iteration are sent as one message."""

    def __init__(self, verifier: RoundCaller) -> None:
        self.arrivals = Arrivals()
        self._opens: list[Opening] = []
        self._cancels: list[int] = []
        self._credits: dict[int, int] = {}
        self._due = asyncio.Event()
        self._over = False
        self._reading = asyncio.create_task(self._read(verifier))

    def open(self, opening: Opening) -> None:
        """Order a generation."""
        self._opens.append(opening)
        self._due.set()

    def credit(self, slot: int, length: int) -> None:
        """Order more credit."""
        self._credits[slot] = length
        self._due.set()

    def cancel(self, slot: int) -> None:
        """Order the end of a generation."""
        self._cancels.append(slot)
        self._credits.pop(slot, None)
        self._due.set()

    async def close(self) -> None:
        """End the call."""
        await cancel_and_wait(self._reading)

    async def _orders(self) -> AsyncGenerator[Orders]:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._over:
                return
            opens, self._opens = self._opens, []
            cancels, self._cancels = self._cancels, []
            credits, self._credits = self._credits, {}
            yield Orders(opens, cancels, credits)

    async def _read(self, verifier: RoundCaller) -> None:
        lost: SpecdecError = NoVerifier(f"verifier {verifier.address} ended its stream")
        try:
            async with aclosing(verifier.serve(self._orders())) as passes:
                async for done in passes:
                    self.arrivals.add(done.rounds, {slot: error_from_bytes(end) for slot, end in done.ended.items()})
        except SpecdecError as error:
            lost = error
        finally:
            self.arrivals.lose(lost)
            # gRPC does not close the request iterator of a failed call: wake it so that it ends.
            self._over = True
            self._due.set()


class CallStream:
    """Slots of a verifier of the previous release, with one call of Generate per slot."""

    def __init__(self, verifier: RoundCaller) -> None:
        self.arrivals = Arrivals()
        self._verifier = verifier
        self._running: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, int] = {}
        self._credited = asyncio.Event()

    def open(self, opening: Opening) -> None:
        """Call Generate."""
        self._credits[opening.slot] = opening.credit
        self._running[opening.slot] = asyncio.create_task(self._run(opening))

    def credit(self, slot: int, length: int) -> None:
        """Continue to read the slot's call."""
        if slot in self._credits:
            self._credits[slot] = length
            self._credited.set()

    def cancel(self, slot: int) -> None:
        """Cancel the call."""
        if slot in self._running:
            self._running[slot].cancel()

    async def close(self) -> None:
        """Cancel all calls."""
        await asyncio.gather(*map(cancel_and_wait, list(self._running.values())))

    async def _run(self, opening: Opening) -> None:
        slot = opening.slot
        try:
            error = await self._error(opening)
            if error is not None:
                self.arrivals.add((), {slot: error})
        finally:
            del self._running[slot], self._credits[slot]

    async def _error(self, opening: Opening) -> SpecdecError | None:
        """Read a call to its end; return the error if it ended without a finish."""
        timeout, finished = float("inf") if opening.timeout is None else opening.timeout, False
        try:
            async with aclosing(self._verifier.generate(opening.call, timeout)) as rounds:
                async for verified in rounds:
                    self.arrivals.add([(opening.slot, verified)], {})
                    finished = verified.finish is not None
                    if not finished:
                        await self._until_credited(opening.slot, verified.base_len + len(verified.tokens))
        except SpecdecError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the slot's receiver must get the error
            return InternalError(f"a generation failed: {error!r}")
        return None if finished else NoVerifier(f"verifier {self._verifier.address} ended without finishing")

    async def _until_credited(self, slot: int, length: int) -> None:
        while self._credits[slot] <= length:
            self._credited.clear()
            await self._credited.wait()
