"""Reader of a single-call stream: a queue of rounds."""

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum

from specdec.wire.generation import GenerationCall, Round
from verifier_service.passes.generations import Generations
from verifier_service.passes.sequence import Reader

AHEAD = 32
"""Tokens that a generation may be ahead of its reader. Enough to hide the time of a write, and few enough that a slow
reader holds the generation back."""


class _Mark(Enum):
    """Markers in the queue between rounds."""

    SILENCE = "silence"
    """No round for one heartbeat interval."""


class CallReader(Reader):
    """Queue of a generation's rounds. Each round that the call reads grants the generation more credit."""

    def __init__(self, generations: Generations, call: GenerationCall) -> None:
        """Begin the generation; raise the errors of `Generations.open`."""
        self._buffer: asyncio.Queue[Round | Exception | _Mark] = asyncio.Queue()
        self._heard = 0.0
        """Time of the last round or mark, by the event loop's clock."""
        self._sequence = generations.open(call, self, len(call.tokens) + AHEAD)

    def close(self) -> None:
        """End the generation."""
        self._sequence.close()

    def add(self, done: Round) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._buffer.put_nowait(done)

    def failed(self, error: Exception) -> None:
        self._buffer.put_nowait(error)

    async def rounds(self, heartbeat: float | None = None) -> AsyncGenerator[Round | None]:
        """Yield the rounds, and None after each `heartbeat` seconds without one.

        Closing the iterator ends the generation.

        Raises:
            Exception: the error that the generation failed with.
        """
        # One task for the whole call is cheaper than one timer for each round.
        silence = None if heartbeat is None else asyncio.create_task(self._mark_silence(heartbeat))
        try:
            while True:
                done = await self._buffer.get()
                if isinstance(done, Exception):
                    raise done
                if isinstance(done, _Mark):
                    yield None
                    continue
                yield done
                if done.finish is not None:
                    return
                self._sequence.grant(done.base_len + len(done.tokens) + AHEAD)
        finally:
            self.close()
            if silence is not None:
                silence.cancel()

    async def _mark_silence(self, heartbeat: float) -> None:
        """Queue a mark after every `heartbeat` seconds without a round, unless the queue holds unread items."""
        clock = asyncio.get_running_loop().time
        self._heard = clock()
        while True:
            await asyncio.sleep(self._heard + heartbeat - clock())
            if clock() >= self._heard + heartbeat:
                self._heard = clock()
                if self._buffer.empty():
                    self._buffer.put_nowait(_Mark.SILENCE)
