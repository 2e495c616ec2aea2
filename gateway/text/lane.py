"""A thread with a bounded queue, which serves tenants in turn, so that no tenant's flood delays another's request."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.fair_queue import FairQueue

LEAST_SIZE = 512
"""What the smallest piece of work counts, in bytes, so that the number of pieces is bounded, too."""

_Result = TypeVar("_Result")


class TokenizingLane:
    """Runs work on one thread, each piece whole; belongs to one event loop."""

    def __init__(self, name: str, capacity: int) -> None:
        """Let work of up to `capacity` bytes wait; work that nothing else waits before may be larger."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queue = FairQueue(name, 1, capacity)

    async def run(self, tenant: str, size: int, work: Callable[[], _Result]) -> _Result:
        """The result of `work`; its thread goes on to the end when the caller is cancelled.

        Args:
            tenant: whose work it is.
            size: the memory it holds while it waits, in bytes.
            work: called on the thread.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        await self._queue.enter(tenant, size=max(size, LEAST_SIZE))
        done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        done.add_done_callback(lambda _: self._queue.leave(tenant))
        return await asyncio.shield(done)
