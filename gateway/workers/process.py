"""The gateway's end of a worker: one question at a time, and a worker that does not answer in time is killed."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from gateway.workers.serving import HEADER

_START_SECONDS = 30.0
"""Longest start of a worker; it is not counted as time of the question that needs it."""


class WorkerLost(Exception):
    """The worker died, or did not answer in time; the next question gets a new one."""


class WorkerProcess:
    """A process that runs `python -m module`; it is started when there is a first question.

    Whoever asks waits for the answer before it asks again.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: Process | None = None
        self._starting: asyncio.Task[Process] | None = None

    def warm(self) -> None:
        """Begin to start the process, so that the next question need not wait for that."""
        if self._process is None and self._starting is None:
            self._starting = asyncio.create_task(self._start())

    async def ask(self, question: bytes, seconds: float) -> bytes:
        """The answer to a question.

        Raises:
            WorkerLost: the worker died of it, or did not answer in `seconds`; it is killed.
        """
        answered = False
        try:
            process = await self._started()
            async with asyncio.timeout(seconds):
                answer = await _exchange(process, question)
            answered = True
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise WorkerLost(f"{self._module}: {error!r}") from error
        finally:
            if not answered:  # also where the caller left: the answer would be taken for that of the next question
                await self.close()
        return answer

    async def close(self) -> None:
        """End the process."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)

    async def _started(self) -> Process:
        if self._process is not None and self._process.returncode is not None:  # it died of something else
            self._process = None
        if self._process is None:
            self.warm()
            if self._starting is not None:
                self._process = await asyncio.shield(self._starting)
                self._starting = None
        if self._process is None:
            raise OSError("the worker was closed")
        return self._process

    async def _start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await _read(process)
        except BaseException:
            await _kill(process)
            raise
        return process


async def _exchange(process: Process, question: bytes) -> bytes:
    if process.stdin is None:
        raise OSError("the worker has no input")
    process.stdin.write(HEADER.pack(len(question)) + question)
    await process.stdin.drain()
    return await _read(process)


async def _read(process: Process) -> bytes:
    if process.stdout is None:
        raise OSError("the worker has no output")
    (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    return await process.stdout.readexactly(size)


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
