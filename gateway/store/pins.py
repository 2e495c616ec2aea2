"""Session affinity: Redis stores which verifier holds the KV of each session. Losing a pin costs time, not output."""

import asyncio
from collections.abc import Collection

import structlog
from redis.asyncio import Redis

from gateway.store import lua
from gateway.store.redis_scripts import SharedPipeline

_log = structlog.get_logger()

_PATIENCE = 0.5
"""Timeout of a pin lookup, in seconds; after it a generation uses its own choice."""


class Pins:
    """Stores the last verifier of each session, in the session's hash slot."""

    def __init__(self, client: Redis, ttl: float, prefix: str = "") -> None:
        """Args: ttl: lifetime of a pin in seconds after its last use; prefix: prefix of every key."""
        self._client = client
        self._ttl_ms = round(ttl * 1000)
        self._prefix = prefix
        self._storing = set[asyncio.Future[str]]()
        self._pipeline = SharedPipeline(client, replicas=0)

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        """Return the candidate that served the session last; if there is none, store and return `choice`.

        With a single candidate, return at once and store the pin in the background.

        Args:
            session: session id.
            epoch: epoch of the session's owner; an epoch older than the stored one changes nothing.
            choice: key of the verifier to use if no candidate is stored or Redis does not answer.
            candidates: keys of all verifiers that may serve the session.
        """
        storing = asyncio.ensure_future(self._settle(session, epoch, choice, candidates))
        if len(candidates) > 1:
            return await storing
        self._storing.add(storing)  # the result is known: the pin is stored for later turns only
        storing.add_done_callback(self._storing.discard)
        return choice

    async def _settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        key = f"{self._prefix}sd:1:{{{session}}}:v"
        try:
            async with asyncio.timeout(_PATIENCE):
                script, limits = lua.script("pin"), (epoch, self._ttl_ms)
                answer: bytes = await self._pipeline.run("EVAL", script, 1, key, *limits, choice, *candidates)
            return answer.decode()
        except Exception as error:  # noqa: BLE001 - Redis is away or late, or its answer cannot be read
            _log.info("pin_unknown", session=session, error=str(error))
            return choice

    async def close(self) -> None:
        """Wait for pending writes, then close the connection."""
        await asyncio.gather(*self._storing)
        await self._pipeline.close()
        await self._client.aclose()
