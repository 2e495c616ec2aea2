"""The reader of a call of its own: a queue in front of one stream."""

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum

from specdec.wire.generation import GenerationCall, Round
from verifier_service.passes.generations import Generations
from verifier_service.passes.sequence import Reader

AHEAD = 32
"""Tokens that a generation may be ahead of its reader: enough to hide the write, few enough to hold back for a slow
reader."""


class _Mark(Enum):
    """What lies between rounds."""

    SILENCE = "silence"
    """There was no round for the time of a heartbeat."""


class CallReader(Reader):
    """Rounds of one generation until the call takes them, which is what gives the generation credit."""

    def __init__(self, generations: Generations, call: GenerationCall) -> None:
        """Begin the generation; raises what `Generations.open` does."""
        self._buffer: asyncio.Queue[Round | Exception | _Mark] = asyncio.Queue()
        self._heard = 0.0
        """When there was a round or a mark last, by the event loop's clock."""
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
        """Yield the rounds, and None whenever there was none for `heartbeat` seconds; leaving ends the generation.

        Raises:
            Exception: the error that the generation failed with.
        """
        # One task for the whole call: to set and to take back a timer for each round costs time in every round.
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
        """Put a mark after every `heartbeat` seconds without a round, unless the reader has something to take."""
        clock = asyncio.get_running_loop().time
        self._heard = clock()
        while True:
            await asyncio.sleep(self._heard + heartbeat - clock())
            if clock() >= self._heard + heartbeat:
                self._heard = clock()
                if self._buffer.empty():
                    self._buffer.put_nowait(_Mark.SILENCE)
