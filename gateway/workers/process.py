"""Gateway's side of a worker: one question at a time, each with a limit of processor time."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

import structlog

from gateway.workers.serving import HEADER, LATE, PATIENCE, QUESTION

_log = structlog.get_logger()

_GRACE = 5.0
"""Seconds in which a worker that works reports a late answer."""
_START_SECONDS = 30.0
"""Timeout of a worker's start, in seconds; not part of a question's timeout."""


class WorkerLost(Exception):
    """The worker crashed."""


class WorkerLate(WorkerLost):
    """The worker did not answer in time."""


class WorkerProcess:
    """Process that runs `python -m module`, started by the first question.

    Callers must wait for each answer before the next question.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: Process | None = None
        self._starting: asyncio.Task[Process] | None = None
        self._exchange: asyncio.Task[bytes] | None = None
        """The last question and its answer, also where the caller has left."""

    def warm(self) -> None:
        """Start the process in advance, so that the next question does not wait for the start."""
        if self._process is None and self._starting is None:
            self._starting = asyncio.create_task(self._start())

    async def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a question and return its answer. After a crash, ask once more.

        Args:
            question: bytes for the worker.
            seconds: most processor time of the answer. A busy machine gives it more time than that, up to a multiple.

        Raises:
            WorkerLate: the answer took too long.
            WorkerLost: the worker crashed twice, or was closed.
        """
        if self._exchange is not None:  # of a caller that left
            await asyncio.wait({self._exchange})
        exchange = self._exchange = asyncio.create_task(self._answer(question, seconds))
        exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            if exchange.cancelled():
                raise WorkerLost(f"{self._module}: it was closed") from None
            raise

    async def _answer(self, question: bytes, seconds: float) -> bytes:
        try:
            return await self._answer_once(question, seconds)
        except WorkerLate:
            raise
        except WorkerLost as error:
            _log.warning("worker_crashed", error=str(error))
            return await self._answer_once(question, seconds)

    async def _answer_once(self, question: bytes, seconds: float) -> bytes:
        process: Process | None = None
        try:
            process = await self._started()
            async with asyncio.timeout(PATIENCE * seconds + _GRACE):
                status, answer = await _exchange(process, question, seconds)
        except (OSError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
            await self._end()
            late = process is not None and isinstance(error, TimeoutError)
            raise (WorkerLate if late else WorkerLost)(f"{self._module}: {error!r}") from error
        if status == LATE:
            raise WorkerLate(f"{self._module}: no answer in {seconds:g} s")
        if status:
            raise WorkerLost(f"{self._module}: exit status {status}")
        return answer

    async def close(self) -> None:
        """End the process."""
        if self._exchange is not None:
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
            self._exchange = None
        await self._end()

    async def _end(self) -> None:
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


async def _exchange(process: Process, question: bytes, seconds: float) -> tuple[int, bytes]:
    if process.stdin is None:
        raise OSError("the worker has no input")
    process.stdin.write(QUESTION.pack(len(question), seconds) + question)
    await process.stdin.drain()
    return await _read(process)


async def _read(process: Process) -> tuple[int, bytes]:
    if process.stdout is None:
        raise OSError("the worker has no output")
    status, size = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    return status, await process.stdout.readexactly(size)


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
