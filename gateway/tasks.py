"""Ends tasks for certain."""

import asyncio
from typing import Any

AGAIN = 2.0
"""Seconds after which a task that has not ended is told again; longer than what a task does to end well."""


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended.

    Once is not enough: before Python 3.12 `asyncio.wait_for`, with which the Redis client writes, loses a cancellation
    that comes in the moment it succeeds.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN)
