"""Fair queue: callers get places in rotation, so a flood from one caller does not delay another's single request.

Fairness has two levels: clients, identified by a key or an address, and the users of a client.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from specdec.errors import QueueFull

_Result = TypeVar("_Result")

_QUEUE_SHARES = 2
"""Divisor of queue shares: a client may use 1/2 of the queue, and a user 1/2 of its client's part."""
_PLACE_SHARES = 7
"""Most places of a client without users, as a multiple of the free places; a lone client gets 7 in 8."""
_USER_SHARES = 3
"""Same multiple for a client with users, and for each user within the client; a lone client gets 3 in 4."""


class Share(NamedTuple):
    """Holder of places: a client, or one of its users."""

    client: str
    user: str = ""
    """User of the client; users get places in rotation. Empty if the client's users are not distinguished."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Request in the queue; it gets all its places at once."""

    places: int
    size: int
    called: "asyncio.Future[None]"


_Users = dict[Share, deque[_Waiter]]
"""Non-empty queues of waiters by user, least recently served user first."""


class FairQueue:
    """Fixed number of places and a bounded queue of waiters. Belongs to one event loop."""

    def __init__(self, name: str, places: int, capacity: int) -> None:
        """Make a queue.

        Args:
            name: plural name of the waiting work, for error messages.
            capacity: most total size of the waiters. A single waiter in an empty queue may be larger.
        """
        self._name = name
        self._all = places
        self._free = places
        self._capacity = capacity
        self._taken: Counter[Share | str] = Counter()
        """Places held, by user and by client."""
        self._sizes: Counter[Share | str] = Counter()
        """Total size of the waiters, by user and by client."""
        self._waiting = 0
        """Total size of all waiters."""
        self._queues: dict[str, _Users] = {}
        """Waiters by client, least recently served client first."""

    async def enter(self, tenant: Share | str, places: int = 1, size: int = 1) -> None:
        """Wait until the tenant gets `places` more places; it holds them until `leave`.

        Args:
            tenant: the holder; a string is a client without users.
            places: number of places to take; at most the total.
            size: size of the request in the queue while it waits.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        share = _share(tenant)
        waiter = _Waiter(places, size, asyncio.get_running_loop().create_future())
        self._queues.setdefault(share.client, {}).setdefault(share, deque()).append(waiter)
        self._count(self._sizes, share, size)
        self._waiting += size
        self._call()
        try:
            if not waiter.called.done():
                self._check_room(share, size)
            await waiter.called
        except BaseException:
            self._withdraw(share, waiter)
            raise

    def take(self, tenant: Share | str, places: int = 1) -> None:
        """Give the tenant `places` at once, even if fewer are free. Waiters are delayed until enough are released."""
        self._free -= places
        self._count(self._taken, _share(tenant), places)

    def leave(self, tenant: Share | str, places: int = 1) -> None:
        """Release `places` places of a tenant."""
        self._free += places
        self._count(self._taken, _share(tenant), -places)
        self._call()

    def _count(self, counts: "Counter[Share | str]", share: Share, more: int) -> None:
        for each in (share, share.client):
            counts[each] += more
            if not counts[each]:
                del counts[each]

    def _check_room(self, share: Share, size: int) -> None:
        """Raise QueueFull unless there is room for `size`. The queue's totals already include it."""
        waiting = self._waiting - size
        if waiting and waiting + size > self._capacity:
            raise QueueFull(f"too many {self._name} are waiting")
        most = self._capacity // _QUEUE_SHARES
        for each, room in ((share.client, most), *([(share, most // _QUEUE_SHARES)] if share.user else ())):
            own = self._sizes[each] - size
            if own and own + size > room:
                raise QueueFull(f"too many {self._name} of this user are waiting")

    def _withdraw(self, share: Share, waiter: _Waiter) -> None:
        """Remove a waiter from the queue, or release the places that it was given."""
        if waiter in self._queues.get(share.client, {}).get(share, ()):
            self._remove(share, waiter)
            self._call()
        elif not waiter.called.cancelled():
            self.leave(share, waiter.places)

    def _remove(self, share: Share, waiter: _Waiter) -> None:
        """Remove a waiter, and move its user to the end of its client's users and its client to the end of all."""
        users = self._queues.pop(share.client)
        queue = users.pop(share)
        queue.remove(waiter)
        self._count(self._sizes, share, -waiter.size)
        self._waiting -= waiter.size
        if queue:
            users[share] = queue
        if users:
            self._queues[share.client] = users

    def _call(self) -> None:
        """Give free places to waiters."""
        while (share := self._next()) is not None:
            waiter = self._queues[share.client][share][0]
            self._remove(share, waiter)
            if not waiter.called.done():
                self.take(share, waiter.places)
                waiter.called.set_result(None)

    def _next(self) -> Share | None:
        """Return the next user that may have more places; None if too few places are free for it."""
        if self._free <= 0:
            return None
        for users in self._queues.values():
            for share, queue in users.items():
                if self._may_have_more(share):
                    return share if queue[0].places <= self._free else None
        return None

    def _may_have_more(self, share: Share) -> bool:
        """Whether the user is below its share of the client's places, and the client below its share of all."""
        taken = self._taken[share.client]
        if not share.user:
            return taken < _PLACE_SHARES * self._free
        left = self._all * _USER_SHARES // (_USER_SHARES + 1) - taken
        return taken < _USER_SHARES * self._free and (self._taken[share] < _USER_SHARES * max(left, 1) or not taken)


class FairThread:
    """Thread for work that would hold the event loop, with a queue that serves callers in rotation.

    Belongs to one event loop.
    """

    def __init__(self, name: str, capacity: int) -> None:
        """Args: name: name for threads and errors; capacity: most total size of the work that waits."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queue = FairQueue(name, 1, capacity)

    async def run(self, tenant: Share, work: Callable[[], _Result], size: int = 1) -> _Result:
        """Run `work` on the thread and return its result. Cancelling the caller does not stop the work.

        Args:
            tenant: caller, for fair queueing.
            work: function to run.
            size: size of the work in the queue while it waits. A single piece in an empty queue may be larger.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        await self._queue.enter(tenant, size=size)
        done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        done.add_done_callback(lambda _: self._queue.leave(tenant))
        return await asyncio.shield(done)


class FairThreads:
    """Two such threads, for short and for long work, so that long work never delays short work."""

    def __init__(self, name: str, capacity: int, short: int) -> None:
        """Args: name: plural name of the work; capacity: of each thread; short: largest size of short work."""
        self._short = FairThread(f"short {name}", capacity)
        self._long = FairThread(f"long {name}", capacity)
        self._boundary = short

    async def run(self, tenant: Share, work: Callable[[], _Result], size: int) -> _Result:
        """Run `work` like `FairThread.run`, on the thread for its size."""
        return await (self._short if size <= self._boundary else self._long).run(tenant, work, size)


def _share(tenant: Share | str) -> Share:
    return tenant if isinstance(tenant, Share) else Share(tenant)
