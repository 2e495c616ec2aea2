"""The end of the process: when it takes no new generations, how many still run, and when those must stop."""

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
        """Whether the process is about to end; it may still take new generations for a moment."""
        return self._closing

    def announce(self) -> None:
        """Announce the end, so that load balancers send no more requests here."""
        self._closing = True

    @contextmanager
    def generation(self) -> Iterator[None]:
        """Count one generation inside the context; raises Draining when no new generation is taken."""
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
        """Raise Draining when no new generation is taken."""
        if self._closed:
            raise Draining("the gateway is shutting down")

    @property
    def expired(self) -> bool:
        """Whether the time for generations to finish is over."""
        return self._expired

    def check(self) -> None:
        """Raise Draining when the time for generations to finish is over."""
        if self._expired:
            raise Draining("the gateway is shutting down and could not finish this generation in time")

    def close(self) -> None:
        """Take no new generations from now on."""
        self._closing = True
        self._closed = True

    async def wait(self, limit: float) -> bool:
        """Wait up to `limit` seconds until no generation runs; after that `check` stops those that do.

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
