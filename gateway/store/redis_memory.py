"""Refuses new turns before the server's memory is full, or while the server cannot write to its disk."""

import math
import time
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreFull

FULL = 0.85
"""Share of the server's memory limit above which new turns are refused."""
_PROBE_MS = 1000
"""Lifetime of a trial write's key, in milliseconds."""


class MemoryGuard:
    """Monitors the memory use of one server, and whether it accepts writes."""

    def __init__(self, client: Redis, prefix: str = "") -> None:
        """Args: prefix: prefix of every key."""
        self._client = client
        self._probe = f"{prefix}writes"
        self._read_at = -math.inf
        self._share = 0.0
        self._doubtful = False

    async def check(self, max_age: float = 1.0) -> None:
        """Check that the server can store a new turn.

        Args:
            max_age: seconds for which the last reading stays valid.

        Raises:
            SessionStoreFull: the server's memory or disk is full, or its disk fails.
            SessionStoreReadOnly: the server is a replica.
            SessionStoreDown: the server does not answer.
        """
        if time.monotonic() - self._read_at >= max_age:
            self._read_at = time.monotonic()  # before the read, so that only one of many callers asks the server
            await guarded(self._read())
        if self._share >= FULL:
            raise SessionStoreFull(f"the session store is {self._share:.0%} full and takes no new work")
        if self._doubtful:
            # After a disk failure, the server's settings decide whether it refuses writes: try one.
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
    """Whether INFO persistence reports a failed write to disk."""
    return any(disk.get(name, "ok") != "ok" for name in ("aof_last_write_status", "rdb_last_bgsave_status"))
