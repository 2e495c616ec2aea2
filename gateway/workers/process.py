"""Gateway's side of a worker: one question at a time; a worker that does not answer in time is killed."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.workers.serving import HEADER

_PATIENCE = 4
"""Real time of an answer on a busy machine, as a multiple of its processor time."""
_LEAST_WAIT = 0.01
"""Shortest wait between two looks at the processor time, in seconds."""
_START_SECONDS = 30.0
"""Timeout of a worker's start, in seconds; not part of a question's timeout."""


class WorkerLost(Exception):
    """The worker died, or did not answer in time; the next question gets a new one."""


class WorkerProcess:
    """Process that runs `python -m module`, started by the first question.

    Callers must wait for each answer before the next question.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: Process | None = None
        self._starting: asyncio.Task[Process] | None = None

    def warm(self) -> None:
        """Start the process in advance, so that the next question does not wait for the start."""
        if self._process is None and self._starting is None:
            self._starting = asyncio.create_task(self._start())

    async def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a question and return its answer.

        Args:
            question: bytes for the worker.
            seconds: most processor time of the answer. A busy machine gives it more time than that, up to a multiple.

        Raises:
            WorkerLost: the worker crashed, or did not answer in time and was killed.
        """
        answered = False
        try:
            process = await self._started()
            answer = await _in_time(process, _exchange(process, question), seconds)
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


async def _in_time(process: Process, exchange: Coroutine[Any, Any, bytes], seconds: float) -> bytes:
    """Return the result of an exchange; raises TimeoutError when the process has used its processor time."""
    loop, before = asyncio.get_running_loop(), _processor_seconds(process.pid)
    end, left = loop.time() + _PATIENCE * seconds, seconds
    task = asyncio.create_task(exchange)
    try:
        while not (await asyncio.wait({task}, timeout=left))[0]:
            left = seconds - (_processor_seconds(process.pid) - before)
            if left <= 0 or loop.time() >= end:
                raise TimeoutError(f"no answer in {seconds:g} s")
            left = min(max(left, _LEAST_WAIT), end - loop.time())
        return task.result()
    finally:
        task.cancel()


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process; the real time where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
