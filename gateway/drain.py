"""Graceful shutdown: refuses new generations, counts the running ones, and sets the time when they must stop."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.metrics import GatewayMetrics
from specdec.errors import Draining


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
