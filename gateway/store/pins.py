"""Session affinity: Redis remembers which verifier has the KV of a session; losing this costs time, not output."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import structlog
from redis.asyncio import Redis

from gateway.store import lua

_log = structlog.get_logger()

_PATIENCE = 0.5
"""Seconds for which a generation waits for Redis before it uses its own choice."""


class Pins:
    """Remembers the verifier that served each session last, in the slot of the session."""

    def __init__(self, client: Redis, ttl: float, prefix: str = "") -> None:
        """Args: ttl: seconds for which a pin is kept after its last use; prefix: of every key."""
        self._client = client
        self._ttl_ms = round(ttl * 1000)
        self._prefix = prefix
        self._storing = set[asyncio.Future[str]]()
        self._script: Callable[..., Awaitable[Any]] = client.register_script(lua.script("pin"))

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        """The candidate that served the session last, or else `choice`, which is remembered.

        Where there is one candidate alone, nobody waits for that.

        Args:
            epoch: the epoch of the session's owner; an epoch older than the stored one changes nothing.
            choice: the key of the verifier to serve it when there is no stored candidate, or Redis does not answer.
            candidates: the keys of all verifiers that may serve it.
        """
        storing = asyncio.ensure_future(self._settle(session, epoch, choice, candidates))
        if len(candidates) > 1:
            return await storing
        self._storing.add(storing)  # there is no choice to wait for: it is stored for turns to come
        storing.add_done_callback(self._storing.discard)
        return choice

    async def _settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        key = f"{self._prefix}sd:1:{{{session}}}:v"
        try:
            async with asyncio.timeout(_PATIENCE):
                answer: bytes = await self._script(keys=[key], args=[epoch, self._ttl_ms, choice, *candidates])
            return answer.decode()
        except Exception as error:  # noqa: BLE001 - Redis is away or late, or its answer cannot be read
            _log.info("pin_unknown", session=session, error=str(error))
            return choice

    async def close(self) -> None:
        """Close the connection, behind what is being stored."""
        await asyncio.gather(*self._storing)
        await self._client.aclose()
