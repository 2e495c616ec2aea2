"""Refuses new turns before the server's memory is full, or while it cannot write to its disk."""

import math
import time
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreFull

FULL = 0.85
"""Share of the server's memory limit from which on no new turn is accepted."""
_PROBE_MS = 1000
"""How long the key of a trial write lives."""


class MemoryGuard:
    """Watches how much of its memory limit one server uses, and whether it writes."""

    def __init__(self, client: Redis, prefix: str = "") -> None:
        """`prefix` begins every key."""
        self._client = client
        self._probe = f"{prefix}writes"
        self._read_at = -math.inf
        self._share = 0.0
        self._doubtful = False

    async def check(self, max_age: float = 1.0) -> None:
        """See whether a new turn can be stored.

        Args:
            max_age: seconds for which what was read last is taken as current.

        Raises:
            SessionStoreFull: the server has no memory for it, or its disk is full or fails.
            SessionStoreReadOnly: it is a replica.
            SessionStoreDown: it does not answer.
        """
        if time.monotonic() - self._read_at >= max_age:
            self._read_at = time.monotonic()  # of many callers, one asks the server
            await guarded(self._read())
        if self._share >= FULL:
            raise SessionStoreFull(f"the session store is {self._share:.0%} full and takes no new work")
        if self._doubtful:
            # Whether the server refuses a write, after a failure of its disk, is up to its settings.
            await guarded(self._client.set(self._probe, b"", px=_PROBE_MS))

    async def _read(self) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            for section in ("memory", "persistence", "replication"):
                pipe.info(section)
            memory, disk, replication = await pipe.execute()
        limit = int(memory["maxmemory"])
        self._share = int(memory["used_memory"]) / limit if limit else 0.0
        self._doubtful = _disk_failed(disk) or replication.get("role", "master") != "master"


def _disk_failed(disk: Mapping[str, Any]) -> bool:
    """Whether INFO persistence tells of a write to the disk that failed."""
    return any(disk.get(name, "ok") != "ok" for name in ("aof_last_write_status", "rdb_last_bgsave_status"))
