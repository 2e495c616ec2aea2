"""Reliable cancellation of asyncio tasks, and results that several tasks share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

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
