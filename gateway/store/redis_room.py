"""Keeps room in the session store for the turns that run: new ones are refused before the memory is used up."""

import time

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreFull

FULL = 0.85
"""Share of the server's memory limit from which on no new turn is let in."""
_LOOK_EVERY = 1.0
"""Seconds one look at the server's memory is good for."""


class Room:
    """What is known of a server's memory."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._looked = -_LOOK_EVERY
        self._share = 0.0

    async def check(self) -> None:
        """Raise SessionStoreFull when there is no room for a new turn."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            memory = await guarded(self._client.info("memory"))
            limit = int(memory["maxmemory"])
            self._share = int(memory["used_memory"]) / limit if limit else 0.0
            self._looked = time.monotonic()
        if self._share >= FULL:
            raise SessionStoreFull(f"the session store is {self._share:.0%} full and takes no new work")
