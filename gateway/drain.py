"""Whether new work is welcome, how much is running, and when what still runs must stop."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.metrics import GatewayMetrics
from specdec.errors import Draining


class Drain:
    """The gate every generation passes through."""

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
        """Whether the process is on its way out, though it may still let work in."""
        return self._closing

    def announce(self) -> None:
        """Say that the end is near, so that no more work is sent here."""
        self._closing = True

    @contextmanager
    def generation(self) -> Iterator[None]:
        """Count one generation.

        Raises:
            Draining: the gate is closed.
        """
        if self._closed:
            raise Draining("the gateway is shutting down")
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def check(self) -> None:
        """Raise Draining when the time for running generations is over."""
        if self._expired:
            raise Draining("the gateway is shutting down and could not finish this generation in time")

    def close(self) -> None:
        """Let nothing new in."""
        self._closing = True
        self._closed = True

    async def wait(self, limit: float) -> bool:
        """Wait until nothing runs; after `limit` seconds, tell what still runs to stop and answer False."""
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            self._expired = True
            return False
        return True

    def _count(self, change: int) -> None:
        self._running += change
        self._metrics.running.set(self._running)
        if self._running:
            self._idle.clear()
        else:
            self._idle.set()
