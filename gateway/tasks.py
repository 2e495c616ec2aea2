"""Reliable cancellation of asyncio tasks."""

import asyncio
from typing import Any

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
