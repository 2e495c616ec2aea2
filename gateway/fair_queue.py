"""Places that callers get in turn, so that no caller's flood keeps another's single request waiting.

There are two levels: clients, which are told apart by what they cannot make up, and the users of a client.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from specdec.errors import QueueFull

_QUEUE_SHARES = 2
"""A client may have one part in so many of the queue, and a user one part in so many of that."""
_PLACE_SHARES = 7
"""A client without users gets another place while it has fewer than so many times the free ones: alone 7 in 8."""
_USER_SHARES = 3
"""As `_PLACE_SHARES` for a client with users: alone 3 in 4; and for each of its users within that."""


class Share(NamedTuple):
    """Who has places."""

    client: str
    user: str = ""
    """One of the client's users, who have places in turn; empty where the client's users are not told apart."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Somebody who waits for a number of places, all at once."""

    places: int
    size: int
    called: "asyncio.Future[None]"


_Users = dict[Share, deque[_Waiter]]
"""What waits, by user; the user that was served longest ago comes first. No queue is empty."""


class FairQueue:
    """A number of places, and a bounded queue of those who wait for them; belongs to one event loop."""

    def __init__(self, name: str, places: int, capacity: int) -> None:
        """Make a queue.

        Args:
            name: what waits, in the plural, for the messages of errors.
            capacity: the sum of the sizes of all that may wait; what nothing else waits before may be larger.
        """
        self._name = name
        self._all = places
        self._free = places
        self._capacity = capacity
        self._taken: Counter[Share | str] = Counter()
        """Places, by the user that has them and by client."""
        self._sizes: Counter[Share | str] = Counter()
        """Sizes of what waits, by user and by client."""
        self._waiting = 0
        """Size of all that waits."""
        self._queues: dict[str, _Users] = {}
        """What waits, by client; the client that was served longest ago comes first."""

    async def enter(self, tenant: Share | str, places: int = 1, size: int = 1) -> None:
        """Return once the tenant has so many places more, which it has until `leave`.

        Args:
            tenant: a client without users where it is a text.
            places: how many places it takes; never more than there are.
            size: what it counts in the queue while it waits.

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
        """Give the tenant so many places at once, even where fewer are free; others wait until they are again."""
        self._free -= places
        self._count(self._taken, _share(tenant), places)

    def leave(self, tenant: Share | str, places: int = 1) -> None:
        """Take so many places back from a tenant."""
        self._free += places
        self._count(self._taken, _share(tenant), -places)
        self._call()

    def _count(self, counts: "Counter[Share | str]", share: Share, more: int) -> None:
        for each in (share, share.client):
            counts[each] += more
            if not counts[each]:
                del counts[each]

    def _check_room(self, share: Share, size: int) -> None:
        """Raise QueueFull unless there is room for `size`, which is in the queue already."""
        waiting = self._waiting - size
        if waiting and waiting + size > self._capacity:
            raise QueueFull(f"too many {self._name} are waiting")
        most = self._capacity // _QUEUE_SHARES
        for each, room in ((share.client, most), *([(share, most // _QUEUE_SHARES)] if share.user else ())):
            own = self._sizes[each] - size
            if own and own + size > room:
                raise QueueFull(f"too many {self._name} of this user are waiting")

    def _withdraw(self, share: Share, waiter: _Waiter) -> None:
        """Take a waiter from the queue, or take back the places that it was given."""
        if waiter in self._queues.get(share.client, {}).get(share, ()):
            self._remove(share, waiter)
            self._call()
        elif not waiter.called.cancelled():
            self.leave(share, waiter.places)

    def _remove(self, share: Share, waiter: _Waiter) -> None:
        """Remove a waiter; its user is behind all others of its client from now on, and its client behind all."""
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
        """Give free places to those who wait."""
        while (share := self._next()) is not None:
            waiter = self._queues[share.client][share][0]
            self._remove(share, waiter)
            if not waiter.called.done():
                self.take(share, waiter.places)
                waiter.called.set_result(None)

    def _next(self) -> Share | None:
        """The user, of those that may have more, that is next; None when there is no room for it."""
        if self._free <= 0:
            return None
        for users in self._queues.values():
            for share, queue in users.items():
                if self._may_have_more(share):
                    return share if queue[0].places <= self._free else None
        return None

    def _may_have_more(self, share: Share) -> bool:
        """Whether a user has less than its share of the places of its client, and the client of all."""
        taken = self._taken[share.client]
        if not share.user:
            return taken < _PLACE_SHARES * self._free
        left = self._all * _USER_SHARES // (_USER_SHARES + 1) - taken
        return taken < _USER_SHARES * self._free and (self._taken[share] < _USER_SHARES * max(left, 1) or not taken)


def _share(tenant: Share | str) -> Share:
    return tenant if isinstance(tenant, Share) else Share(tenant)
