"""Admission control: limits concurrent work, queues the excess fairly within bounds, and refuses the rest.

Callers get places in rotation, so a flood from one caller does not delay another's single request. Fairness has two
levels: clients, identified by a key or an address, and the users of a client.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from gateway.callers.caller import Share, place_share
from gateway.config import AdmissionSettings
from gateway.metrics import GatewayMetrics
from specdec.errors import Draining, QueueFull

_Result = TypeVar("_Result")

UNIT = 16 * 1024
"""Bytes of memory per unit of queue size. A larger request counts as several, which bounds the queue's memory."""
AT_ONCE = 16
"""Most places of one request."""
_QUEUE_SHARES = 2
"""Divisor of queue shares: a client may use 1/2 of the queue, and a user 1/2 of its client's part."""
_PLACE_SHARES = 7
"""Most places of a client without users, as a multiple of the free places; a lone client gets 7 in 8."""
_USER_SHARES = 3
"""Same multiple for a client with users, and for each user within the client; a lone client gets 3 in 4."""


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
            size: size of the request in the queue while it waits; work of size 0 always finds room there.

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
            if size and not waiter.called.done():
                self._check_room(share, size)
            await waiter.called
        except BaseException:
            self._withdraw(share, waiter)
            raise

    async def run(self, tenant: Share | str, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of `work`, which begins when the tenant gets a place and holds it."""
        await self.enter(tenant)
        try:
            return await work()
        finally:
            self.leave(tenant)

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


class Places:
    """Places held by an admitted caller. The end of the context, or `leave`, releases them."""

    def __init__(self, queue: FairQueue, share: Share, count: int) -> None:
        self._queue = queue
        self._share = share
        self._count = count

    def leave(self) -> None:
        """Release the places. Further calls do nothing."""
        count, self._count = self._count, 0
        if count:
            self._queue.leave(self._share, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()


class Admission:
    """Concurrency limit for one kind of work that uses the session store."""

    def __init__(self, kind: str, places: int, settings: AdmissionSettings, metrics: GatewayMetrics) -> None:
        """Args: kind: plural name of the work in metrics and messages."""
        self._queue = FairQueue(kind, places, settings.waiting)
        self._seconds = settings.seconds
        self._waiting = metrics.waiting.labels(kind)
        self._refused = metrics.refused.labels(kind)

    async def enter(self, tenant: str, count: int = 1, memory: int = 0) -> Places:
        """Wait for places.

        Args:
            tenant: the caller. All users of a key's tenant share one limit, and so do all users of one address.
            count: number of places needed; 0 returns at once.
            memory: bytes held by the request while it waits; they take room in the queue.

        Raises:
            QueueFull: the queue is full, or no place became free in time.
        """
        share = place_share(tenant)
        try:
            if count:
                with self._waiting.track_inprogress():
                    async with asyncio.timeout(self._seconds):
                        await self._queue.enter(share, count, max(count, memory // UNIT))
        except TimeoutError as error:
            self._refused.inc()
            raise QueueFull(f"the gateway is full, and no place became free in {self._seconds:g} s") from error
        except QueueFull:
            self._refused.inc()
            raise
        return Places(self._queue, share, count)

    def take(self, tenant: str) -> Places:
        """Take a place for work that can no longer be refused, even if none is free."""
        share = place_share(tenant)
        self._queue.take(share)
        return Places(self._queue, share, 1)

    async def wait(self, tenant: str) -> Places:
        """Wait for a place, in rotation with other callers, for work that can no longer be refused."""
        share = place_share(tenant)
        with self._waiting.track_inprogress():
            await self._queue.enter(share, size=0)
        return Places(self._queue, share, 1)


class RequestPlaces:
    """Places of the generations of one request, of which at most AT_ONCE run at a time; the others wait in turn."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission = admission
        self._tenant = tenant
        self._room = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place inside the context. The first AT_ONCE get theirs at once, the others as these end."""
        late = self._room.locked()
        async with self._room:
            with await self._admission.wait(self._tenant) if late else self._admission.take(self._tenant):
                yield


class Drain:
    """Counts running generations and refuses new ones once it is closed."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        self._closing = False
        self._closed = False
        self._expired = False

    @property
    def closing(self) -> bool:
        """Whether a shutdown was announced. New generations are still accepted until `close`."""
        return self._closing

    def announce(self) -> None:
        """Announce the shutdown, so that load balancers stop sending requests."""
        self._closing = True

    @contextmanager
    def generation(self) -> Iterator[None]:
        """Count one generation inside the context; raises Draining if new generations are refused."""
        self.check_open()
        self._running += 1
        self._idle.clear()
        try:
            with self._metrics.running.track_inprogress():
                yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def check_open(self) -> None:
        """Raise Draining if new generations are refused."""
        if self._closed:
            raise Draining("the gateway is shutting down")

    @property
    def expired(self) -> bool:
        """Whether the drain timeout has passed."""
        return self._expired

    def check(self) -> None:
        """Raise Draining if the drain timeout has passed."""
        if self._expired:
            raise Draining("the gateway is shutting down and could not finish this generation in time")

    def close(self) -> None:
        """Refuse new generations from now on."""
        self._closing = True
        self._closed = True

    async def wait(self, limit: float) -> bool:
        """Wait up to `limit` seconds until no generation runs; after the timeout, `check` stops the others.

        Returns:
            Whether all generations finished in time.
        """
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            self._expired = True
            return False
        return True
