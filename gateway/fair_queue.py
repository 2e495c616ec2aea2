"""Places that tenants get in turn, so that no tenant's flood keeps another's single request waiting."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from specdec.errors import QueueFull

_QUEUE_SHARES = 2
"""A tenant may have one part in so many of the queue."""
_PLACE_SHARES = 7
"""A tenant gets another place while it has fewer than so many times the free ones: a tenant alone gets 7 in 8."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Somebody who waits for a number of places, all at once."""

    places: int
    size: int
    called: "asyncio.Future[None]"


class FairQueue:
    """A number of places, and a bounded queue of those who wait for them; belongs to one event loop."""

    def __init__(self, name: str, places: int, capacity: int) -> None:
        """Make a queue.

        Args:
            name: what waits, in the plural, for the messages of errors.
            capacity: the sum of the sizes of all that may wait; what nothing else waits before may be larger.
        """
        self._name = name
        self._free = places
        self._capacity = capacity
        self._taken: Counter[str] = Counter()
        """Places, by the tenant that has them."""
        self._sizes: Counter[str] = Counter()
        """Sizes of what waits, by tenant."""
        self._queues: dict[str, deque[_Waiter]] = {}
        """What waits, by tenant; the tenant that was served longest ago comes first. No queue is empty."""

    async def enter(self, tenant: str, places: int = 1, size: int = 1) -> None:
        """Return once the tenant has so many places more, which it has until `leave`.

        Args:
            places: how many places it takes; never more than there are.
            size: what it counts in the queue while it waits.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        waiter = _Waiter(places, size, asyncio.get_running_loop().create_future())
        self._queues.setdefault(tenant, deque()).append(waiter)
        self._sizes[tenant] += size
        self._call()
        try:
            if not waiter.called.done():
                self._check_room(tenant, size)
            await waiter.called
        except BaseException:
            self._withdraw(tenant, waiter)
            raise

    def take(self, tenant: str, places: int = 1) -> None:
        """Give the tenant so many places at once, even where fewer are free; others wait until they are again."""
        self._free -= places
        self._taken[tenant] += places

    def leave(self, tenant: str, places: int = 1) -> None:
        """Take so many places back from a tenant."""
        self._free += places
        self._taken[tenant] -= places
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._call()

    def _check_room(self, tenant: str, size: int) -> None:
        """Raise QueueFull unless there is room for `size`, which is in the queue already."""
        own, waiting = self._sizes[tenant] - size, self._sizes.total() - size
        if waiting and waiting + size > self._capacity:
            raise QueueFull(f"too many {self._name} are waiting")
        if own and own + size > self._capacity // _QUEUE_SHARES:
            raise QueueFull(f"too many {self._name} of this user are waiting")

    def _withdraw(self, tenant: str, waiter: _Waiter) -> None:
        """Take a waiter from the queue, or take back the places that it was given."""
        if waiter in self._queues.get(tenant, ()):
            self._remove(tenant, waiter)
            self._call()
        elif not waiter.called.cancelled():
            self.leave(tenant, waiter.places)

    def _remove(self, tenant: str, waiter: _Waiter) -> None:
        """Remove a waiter; its tenant is behind all others from now on."""
        queue = self._queues.pop(tenant)
        queue.remove(waiter)
        self._sizes[tenant] -= waiter.size
        if queue:
            self._queues[tenant] = queue
        else:
            del self._sizes[tenant]

    def _call(self) -> None:
        """Give free places to those who wait."""
        while (tenant := self._next_tenant()) is not None:
            waiter = self._queues[tenant][0]
            self._remove(tenant, waiter)
            if not waiter.called.done():
                self.take(tenant, waiter.places)
                waiter.called.set_result(None)

    def _next_tenant(self) -> str | None:
        """The tenant, of those that may have more, that was served longest ago; None when there is no room for it."""
        if self._free <= 0:
            return None
        for tenant, queue in self._queues.items():
            if self._taken[tenant] < _PLACE_SHARES * self._free:
                return tenant if queue[0].places <= self._free else None
        return None
