"""Who may generate for a session: the caller with the highest epoch seen, and of equal epochs the latest caller.

Epochs are at least the time in microseconds, by the clock of the session store. One that is far ahead of this process's
clock is served and not believed: it is remembered as little more than the time now, so that it soon keeps nobody out.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum

from specdec.errors import Draining, Fenced, SpecdecError
from specdec.wire.generation import Round

_REMEMBERED = 65_536
"""Number of sessions whose epoch is remembered."""
_MOST_SKEW = 60.0
"""Seconds by which an epoch that is remembered may be ahead of this process's clock."""
_AHEAD = 2
"""Rounds that a run may be ahead of its reader: enough to hide the write, few enough to hold back for a slow reader."""


class _Mark(Enum):
    """What lies between rounds."""

    SILENCE = "silence"
    """There was no round for the time of a heartbeat."""
    END = "end"


class Run:
    """One generation in a task of its own, a little ahead of its one reader."""

    def __init__(self, source: AsyncGenerator[Round, None], older: "Run | None") -> None:
        """Start; an `older` run of the same session is fenced, and has ended before this one begins."""
        self._buffer: asyncio.Queue[Round | _Mark] = asyncio.Queue()
        """Rounds that the reader has not taken yet."""
        self._heard = 0.0
        """When there was a round or a mark last, by the event loop's clock."""
        self._space = asyncio.Semaphore(_AHEAD)
        self._error: SpecdecError | None = None
        self.task = asyncio.create_task(self._generate(source, older))
        self.task.add_done_callback(lambda _: self._buffer.put_nowait(_Mark.END))

    def cancel(self) -> None:
        """Stop generating."""
        self.task.cancel()

    def fail(self, error: SpecdecError) -> None:
        """Stop generating; the reader gets the rounds that are buffered and then this error."""
        if not self.task.done():
            self._error = error
            self.task.cancel()

    async def rounds(self, heartbeat: float | None = None) -> AsyncGenerator[Round | None, None]:
        """Yield the rounds, and None whenever there was none for `heartbeat` seconds; leaving early ends the run.

        Raises:
            SpecdecError: the error that the run was failed with, or that the source raised.
        """
        # One task for the whole run: to set and to take back a timer for each round costs time in every round.
        silence = None if heartbeat is None else asyncio.create_task(self._mark_silence(heartbeat))
        try:
            while (done := await self._buffer.get()) is not _Mark.END:
                if done is _Mark.SILENCE:
                    yield None
                else:
                    self._space.release()
                    yield done
            if self._error is not None:
                raise self._error
            self.task.result()
        finally:
            ending = [self.task] if silence is None else [self.task, silence]
            for each in ending:
                each.cancel()
            await asyncio.wait(ending)

    async def _mark_silence(self, heartbeat: float) -> None:
        """Put a mark behind every `heartbeat` seconds without a round, unless the reader has something to take."""
        clock = asyncio.get_running_loop().time
        self._heard = clock()
        while True:
            await asyncio.sleep(self._heard + heartbeat - clock())
            if clock() >= self._heard + heartbeat:
                self._heard = clock()
                if self._buffer.empty():
                    self._buffer.put_nowait(_Mark.SILENCE)

    async def _generate(self, source: AsyncGenerator[Round, None], older: "Run | None") -> None:
        if older is not None:
            older.fail(Fenced("a newer owner has the session"))
            await asyncio.wait([older.task])
        clock = asyncio.get_running_loop().time
        async with aclosing(source) as rounds:
            async for done in rounds:
                await self._space.acquire()
                self._heard = clock()
                self._buffer.put_nowait(done)


class Runs:
    """The runs of this process."""

    def __init__(self, remembered: int = _REMEMBERED, clock: Callable[[], float] = time.time) -> None:
        """`remembered` is the number of sessions whose epoch is remembered; `clock` gives Unix seconds."""
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered
        self._clock = clock
        self._running: dict[str, Run] = {}

    def start(self, session_id: str, epoch: int, source: AsyncGenerator[Round, None]) -> Run:
        """Run the rounds of `source`, once a running generation of the same session has ended.

        Raises:
            Fenced: a higher epoch of the session has been seen.
        """
        highest = self._epochs.get(session_id, 0)
        if epoch < highest:
            raise Fenced(f"epoch {epoch} of the session is over, {highest} has it")
        self._epochs[session_id] = max(highest, min(epoch, round((self._clock() + _MOST_SKEW) * 1e6)))
        self._epochs.move_to_end(session_id)
        if len(self._epochs) > self._remembered:
            self._epochs.popitem(last=False)
        run = Run(source, self._running.get(session_id))
        self._running[session_id] = run
        run.task.add_done_callback(lambda _: self._forget(session_id, run))
        return run

    async def drain(self, limit: float) -> int:
        """Wait for the runs for at most `limit` seconds, then fail those that are left; returns how many these are."""
        if self._running:
            await asyncio.wait([run.task for run in self._running.values()], timeout=limit)
        left = list(self._running.values())
        for run in left:
            run.fail(Draining("the verifier is shutting down"))
        return len(left)

    def _forget(self, session_id: str, run: Run) -> None:
        if self._running.get(session_id) is run:
            del self._running[session_id]
