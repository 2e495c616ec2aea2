"""Which sessions a tenant has made, newest first: a list beside the sessions, true again whenever it is read."""

import hashlib
import time
from typing import Any

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded


class TenantIndex:
    """One sorted set a tenant; a name in it may be of a session that is gone."""

    def __init__(self, client: Redis, keep: float) -> None:
        """Args: keep: seconds a list outlives its last change; longer than any session in it."""
        self._client = client
        self._keep = round(keep)

    async def add(self, tenant: str, session_id: str) -> None:
        """Put a session at the front, unless it has a place already."""
        key = _key(tenant)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {session_id: time.time()}, nx=True)
            pipe.expire(key, self._keep)
            await guarded(pipe.execute())

    async def remove(self, tenant: str, session_id: str) -> None:
        """Take a session out."""
        await guarded(self._client.zrem(_key(tenant), session_id))

    async def page(self, tenant: str, limit: int, after: str) -> list[str]:
        """At most `limit` names, those behind `after`; none when that name is not there any more."""
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
