"""A thread with a bounded queue, which serves tenants in turn, so that no tenant's flood delays another's request."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from specdec.errors import QueueFull

LEAST_SIZE = 512
"""What the smallest piece of work counts, in bytes, so that the number of pieces is bounded, too."""
_SHARES = 2
"""A tenant may have one part in so many of the queue."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A place in the queue."""

    size: int
    called: "asyncio.Future[None]"


class TokenizingLane:
    """Runs work on one thread, each piece whole; belongs to one event loop."""

    def __init__(self, name: str, capacity: int) -> None:
        """Let work of up to `capacity` bytes wait; work that nothing else waits before may be larger."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._name = name
        self._capacity = capacity
        self._busy = False
        self._queues: dict[str, deque[_Place]] = {}
        """What waits, by tenant; the tenant that is served next comes first. No queue is empty."""

    async def run(self, tenant: str, size: int, work: Callable[[], _Result]) -> _Result:
        """The result of `work`; its thread goes on to the end when the caller is cancelled.

        Args:
            tenant: whose work it is.
            size: the memory it holds while it waits, in bytes.
            work: called on the thread.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        if self._busy:
            await self._wait(tenant, max(size, LEAST_SIZE))
        self._busy = True
        done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        done.add_done_callback(lambda _: self._call_next())
        return await asyncio.shield(done)

    async def _wait(self, tenant: str, size: int) -> None:
        """Return when it is the caller's turn; the thread is kept for the caller from then on."""
        self._check_room(tenant, size)
        place = _Place(size, asyncio.get_running_loop().create_future())
        self._queues.setdefault(tenant, deque()).append(place)
        try:
            await place.called
        except asyncio.CancelledError:
            if not self._leave(tenant, place) and not place.called.cancelled():
                self._call_next()
            raise

    def _check_room(self, tenant: str, size: int) -> None:
        sizes = {name: sum(place.size for place in queue) for name, queue in self._queues.items()}
        own, waiting = sizes.get(tenant, 0), sum(sizes.values())
        if waiting and waiting + size > self._capacity:
            raise QueueFull(f"too many {self._name} wait to be tokenized")
        if own and own + size > self._capacity // _SHARES:
            raise QueueFull(f"too many {self._name} of this user wait to be tokenized")

    def _leave(self, tenant: str, place: _Place) -> bool:
        """Give up a place; False when it was called already."""
        queue = self._queues.get(tenant, deque())
        if place not in queue:
            return False
        queue.remove(place)
        if not queue:
            del self._queues[tenant]
        return True

    def _call_next(self) -> None:
        """Give the thread to the tenant that was served longest ago, or to nobody."""
        self._busy = False
        while self._queues and not self._busy:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            place = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            if not place.called.done():
                place.called.set_result(None)
                self._busy = True
