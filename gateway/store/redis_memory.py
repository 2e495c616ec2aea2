"""Refuses new turns before the server's memory is full, so that those that run can go on."""

import math
import time

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreFull

FULL = 0.85
"""Share of the server's memory limit from which on no new turn is accepted."""


class MemoryGuard:
    """Watches how much of its memory limit one server uses."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._read_at = -math.inf
        self._share = 0.0

    async def check(self, max_age: float = 1.0) -> None:
        """Raise SessionStoreFull when the server has no memory for a new turn.

        Args:
            max_age: seconds for which the memory use that was read last is taken as current.
        """
        if time.monotonic() - self._read_at >= max_age:
            self._read_at = time.monotonic()  # of many callers, one asks the server
            self._share = await guarded(self._used_share())
        if self._share >= FULL:
            raise SessionStoreFull(f"the session store is {self._share:.0%} full and takes no new work")

    async def _used_share(self) -> float:
        memory = await self._client.info("memory")
        limit = int(memory["maxmemory"])
        return int(memory["used_memory"]) / limit if limit else 0.0
