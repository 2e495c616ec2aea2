"""Which verifier has a session's KV: a hint in Redis that every gateway shares, and that nobody needs."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

_log = structlog.get_logger()

_PATIENCE = 0.5
"""Seconds a generation waits for the hint."""
_SETTLE = """
-- KEYS: pin. ARGV: epoch, ttl ms, choice, every candidate. Returns the verifier that is to serve.
local held = redis.call('HMGET', KEYS[1], 'v', 'ep')
if held[1] and tonumber(held[2]) > tonumber(ARGV[1]) then return held[1] end  -- a newer owner has pinned it
local choice = ARGV[3]
for i = 4, #ARGV do if ARGV[i] == held[1] then choice = held[1] end end
redis.call('HSET', KEYS[1], 'v', choice, 'ep', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return choice
"""


class Pins(Protocol):
    """Where sessions were served last."""

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        """The candidate that served the session last, or else `choice`, which is remembered.

        Args:
            session: its id.
            epoch: of its owner; an older one changes nothing.
            choice: key of the verifier chosen for it.
            candidates: keys of all that may serve it.
        """

    async def close(self) -> None:
        """Let the connection go."""


class NoPins:
    """Remembers nothing."""

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        """The choice."""
        return choice

    async def close(self) -> None:
        """Nothing to let go."""


class RedisPins:
    """Pins beside the sessions, in the same slot; a store that is away costs a hint, and no generation."""

    def __init__(self, client: Redis, ttl: float) -> None:
        """`ttl` is how long a session that nobody touches stays pinned, in seconds."""
        self._client = client
        self._ttl_ms = round(ttl * 1000)
        self._script: Callable[..., Awaitable[Any]] = client.register_script(_SETTLE)

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        """See Pins.settle."""
        key = f"sd:1:{{{session}}}:v"
        try:
            async with asyncio.timeout(_PATIENCE):
                answer: bytes = await self._script(keys=[key], args=[epoch, self._ttl_ms, choice, *candidates])
        except (RedisError, OSError) as error:  # a timeout is an OSError
            _log.info("pin_unknown", session=session, error=str(error))
            return choice
        return answer.decode()

    async def close(self) -> None:
        """Let the connection go."""
        await self._client.aclose()
