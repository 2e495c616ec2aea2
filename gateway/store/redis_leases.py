"""Which sessions have an owner, and until when: a hint beside the sessions, so that orphans are found without a scan.

What it says may be late or wrong; whoever reads it asks the session itself. So losing a write of it is no failure.
"""

import binascii
import random
import time
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreDown

SHARDS = 64


class LeaseIndex:
    """One sorted set a shard: session id to the end of its lease, in Unix seconds of this machine."""

    def __init__(self, client: Redis, lease: float) -> None:
        """Args: lease: seconds."""
        self._client = client
        self._lease = lease

    async def note(self, session_id: str) -> None:
        """Its lease begins anew."""
        with suppress(SessionStoreDown):
            await guarded(self._client.zadd(_key(session_id), {session_id: time.time() + self._lease}))

    async def drop(self, session_id: str) -> None:
        """It has no owner, or is gone."""
        with suppress(SessionStoreDown):
            await guarded(self._client.zrem(_key(session_id), session_id))

    async def due(self, limit: int) -> list[str]:
        """At most `limit` sessions whose lease seems to be over; nobody else is told them for the time of a lease.

        Raises:
            SessionStoreDown: the server does not answer.
        """
        now, keys = time.time(), [_shard(number) for number in range(SHARDS)]
        random.shuffle(keys)
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.zrangebyscore(key, 0, now, start=0, num=limit)
            shards: list[Any] = await guarded(pipe.execute())
        found = [name.decode() for names in shards for name in names][:limit]
        if found:
            async with self._client.pipeline(transaction=False) as pipe:
                for name in found:
                    pipe.zadd(_key(name), {name: now + self._lease}, xx=True)
                await guarded(pipe.execute())
        return found


def _key(session_id: str) -> str:
    return _shard(binascii.crc_hqx(session_id.encode(), 0) % SHARDS)


def _shard(number: int) -> str:
    return f"sd:1:lease:{number}"
