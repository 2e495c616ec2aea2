"""Admission control: limits concurrent work, queues the excess fairly within bounds, and refuses the rest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from gateway.callers.caller import place_share
from gateway.config import AdmissionSettings
from gateway.fair_queue import FairQueue, Share
from gateway.metrics import GatewayMetrics
from specdec.errors import Draining, QueueFull

UNIT = 16 * 1024
"""Bytes of memory per unit of queue size. A larger request counts as several, which bounds the queue's memory."""


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
