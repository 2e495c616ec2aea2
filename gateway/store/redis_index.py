"""The list of sessions that each tenant has made, newest first; it may name sessions that have expired since."""

import hashlib
import time
from typing import Any

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded


class TenantIndex:
    """One sorted set for each tenant, from session id to the time of its creation."""

    def __init__(self, client: Redis, keep: float) -> None:
        """Args: keep: seconds for which a list is kept after its last change; longer than any session in it lives."""
        self._client = client
        self._keep = round(keep)

    async def add(self, tenant: str, session_id: str) -> None:
        """Put a session at the front of the list, unless it is in the list already."""
        key = _key(tenant)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {session_id: time.time()}, nx=True)
            pipe.expire(key, self._keep)
            await guarded(pipe.execute())

    async def remove(self, tenant: str, session_id: str) -> None:
        """Take a session out of the list."""
        await guarded(self._client.zrem(_key(tenant), session_id))

    async def page(self, tenant: str, limit: int, after: str) -> list[str]:
        """At most `limit` session ids, those behind `after`; none when `after` is not in the list any more."""
        key, start = _key(tenant), 0
        if after:
            rank: Any = await guarded(self._client.zrevrank(key, after))
            if rank is None:
                return []
            start = rank + 1
        names: Any = await guarded(self._client.zrevrange(key, start, start + limit - 1))
        return [name.decode() for name in names]


def _key(tenant: str) -> str:
    return f"sd:1:tenant:{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
