"""Cancellation of asyncio tasks, results that several tasks share, and retries of the session store."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from specdec.errors import SessionStoreDown

PAUSE = 0.2
"""Seconds between two attempts, in addition to the retries of the Redis client."""
ONE_TRY = 5.0
"""Least overall timeout, in seconds, so that the first attempt can complete."""

_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")

CANCEL_AGAIN = 2.0
"""Seconds before a task that is still running is cancelled again; longer than any task's cleanup."""


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended.

    One cancellation is not enough: before Python 3.12, `asyncio.wait_for`, with which the Redis client writes, loses a
    cancellation that arrives at the moment it succeeds.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN)


class Shared(Generic[_Result]):
    """Result that the first of several tasks starts to compute, and for which all of them wait."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_Result] | None = None

    async def get(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Return the result of the first caller's `work`, or raise its error. A caller that leaves does not stop it."""
        if self._task is None:
            self._task = asyncio.create_task(work())
        return await asyncio.shield(self._task)


async def retry(step: Callable[[], Awaitable[_Answer]], seconds: float, *, once: bool = False) -> _Answer:
    """Return the result of `step`; retry it for `seconds` while the store does not answer, then cancel it.

    The step must be safe to repeat: it may have succeeded although its answer was lost.

    Args:
        step: one attempt.
        seconds: time for all attempts.
        once: whether there is only one attempt, which has all the time.

    Raises:
        SessionStoreDown: the store did not answer in time.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout_at(began + max(seconds, ONE_TRY)):
            while True:
                try:
                    return await step()
                except SessionStoreDown:
                    if once or loop.time() + PAUSE > began + seconds:
                        raise
                await asyncio.sleep(PAUSE)
    except TimeoutError as error:
        message = f"the session store did not answer within {loop.time() - began:.0f} s"
        raise SessionStoreDown(message) from error
