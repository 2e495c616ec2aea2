"""Lets in as much work as the gateway can do well; more waits for a while in a fair, bounded queue, or is refused."""

import asyncio
from typing import Self

from gateway.callers.caller import place_share
from gateway.config import AdmissionSettings
from gateway.fair_queue import FairQueue, Share
from gateway.metrics import GatewayMetrics
from specdec.errors import QueueFull

UNIT = 16 * 1024
"""Bytes of memory for which a waiting request counts as one; so the memory of all that wait is bounded, too."""


class Places:
    """Places that somebody was let in to; left at the end of the context, or before."""

    def __init__(self, queue: FairQueue, share: Share, count: int) -> None:
        self._queue = queue
        self._share = share
        self._count = count

    def leave(self) -> None:
        """Give the places back, once."""
        count, self._count = self._count, 0
        if count:
            self._queue.leave(self._share, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()


class Admission:
    """One kind of work that uses the session store, of which so much runs at once."""

    def __init__(self, kind: str, places: int, settings: AdmissionSettings, metrics: GatewayMetrics) -> None:
        """Args: kind: the work's name in metrics and messages, in the plural."""
        self._queue = FairQueue(kind, places, settings.waiting)
        self._seconds = settings.seconds
        self._waiting = metrics.waiting.labels(kind)
        self._refused = metrics.refused.labels(kind)

    async def enter(self, tenant: str, count: int = 1, memory: int = 0) -> Places:
        """Wait for places.

        Args:
            tenant: who enters; all users of one key's tenant share what one may have, and so do all of one address.
            count: how many places it needs; for 0, nobody waits.
            memory: what is held meanwhile, in bytes; it takes room in the queue.

        Raises:
            QueueFull: too much waits already, or no place became free in time.
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
        """A place for work that cannot be refused any more, even where none is free."""
        share = place_share(tenant)
        self._queue.take(share)
        return Places(self._queue, share, 1)
