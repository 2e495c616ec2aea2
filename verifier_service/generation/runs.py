"""Who may generate for a session: the highest epoch seen, and of that only the latest caller."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from specdec.errors import Draining, Fenced, SpecdecError
from verifier_service.generation.rounds import Round

_REMEMBERED = 65_536
"""Sessions whose epoch is remembered."""
_AHEAD = 2
"""Rounds a run may be ahead of its reader: enough to hide the write, few enough that a slow reader holds it back."""


class Rounds(Protocol):
    """A session, as far as a run needs it."""

    def run(self) -> AsyncGenerator[Round, None]:
        """Yield rounds."""


class Run:
    """One session that generates in a task of its own, a little ahead of its one reader."""

    def __init__(self, source: Rounds, older: "Run | None") -> None:
        """Start; an `older` run of the same session is fenced, and over before this one begins."""
        self._buffer: deque[Round] = deque()
        self._space = asyncio.Semaphore(_AHEAD)
        self._news = asyncio.Event()
        self._ended: SpecdecError | None = None
        self.task = asyncio.create_task(self._generate(source, older))
        self.task.add_done_callback(lambda _: self._news.set())

    def cancel(self) -> None:
        """Stop generating."""
        self.task.cancel()

    def end(self, why: SpecdecError) -> None:
        """Stop generating; the reader is told why, after the rounds there are."""
        if not self.task.done():
            self._ended = why
            self.task.cancel()

    async def rounds(self) -> AsyncGenerator[Round, None]:
        """Yield the rounds; leaving early ends the run.

        Raises:
            SpecdecError: what the run was ended with, or what the session raised.
        """
        try:
            while self._buffer or not self.task.done():
                if not self._buffer:
                    self._news.clear()
                    await self._news.wait()
                    continue
                done = self._buffer.popleft()
                self._space.release()
                yield done
            if self._ended is not None:
                raise self._ended
            self.task.result()
        finally:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _generate(self, source: Rounds, older: "Run | None") -> None:
        if older is not None:
            older.end(Fenced("a newer owner has the session"))
            await asyncio.wait([older.task])
        async with aclosing(source.run()) as stream:
            async for done in stream:
                await self._space.acquire()
                self._buffer.append(done)
                self._news.set()


class Runs:
    """The runs of this process."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered
        self._running: dict[str, Run] = {}

    def start(self, session_id: str, epoch: int, source: Rounds) -> Run:
        """Run a session; one of the same id that runs already is over first.

        Raises:
            Fenced: a higher epoch has been seen.
        """
        highest = self._epochs.get(session_id, 0)
        if epoch < highest:
            raise Fenced(f"epoch {epoch} of the session is over, {highest} has it")
        self._epochs[session_id] = epoch
        self._epochs.move_to_end(session_id)
        if len(self._epochs) > self._remembered:
            self._epochs.popitem(last=False)
        run = Run(source, self._running.get(session_id))
        self._running[session_id] = run
        run.task.add_done_callback(lambda _: self._forget(session_id, run))
        return run

    async def drain(self, limit: float) -> int:
        """Wait for the runs there are; how many were not done after `limit` seconds and had to be ended."""
        if self._running:
            await asyncio.wait([run.task for run in self._running.values()], timeout=limit)
        left = list(self._running.values())
        for run in left:
            run.end(Draining("the verifier is shutting down"))
        return len(left)

    def _forget(self, session_id: str, run: Run) -> None:
        if self._running.get(session_id) is run:
            del self._running[session_id]
