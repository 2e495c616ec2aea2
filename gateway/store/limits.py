"""Rate limits of API keys, counted in Redis across all gateways.

Requests and tokens per minute are token buckets that refill evenly within a minute. A request takes one request and an
estimate of its tokens; at its end the difference to the actual use is settled, which may overdraw the bucket.
Concurrent requests are leases, which expire when their gateway dies. Every script is safe to repeat.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from redis.asyncio import Redis

from gateway.callers.caller import ApiKey
from gateway.metrics import KeyMetrics
from gateway.store.checked_scripts import Reply
from gateway.store.redis_replies import understood
from gateway.store.redis_scripts import Scripts
from specdec.errors import RateLimited, SessionStoreDown

LEASE = 30.0
"""Lease of a running request, in seconds; it expires if the gateway stops renewing it."""
_LEASE_MS = round(LEASE * 1000)
PATIENCE = 2.0
"""Timeout of counting or settling a request, in seconds."""
_WAIT_FOR_ANOTHER = 1.0
"""Suggested retry delay, in seconds, if too many requests of a key run."""

_NAMES = {"requests": "requests a minute", "tokens": "tokens a minute", "concurrency": "requests at once"}

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Quota:
    """Remaining requests and tokens of an API key."""

    key: ApiKey
    requests: float
    tokens: float

    @property
    def headers(self) -> Mapping[str, str]:
        """Rate limit headers under OpenAI's names, for the limits that the key has."""
        return _headers("requests", self.key.requests, self.requests) | _headers("tokens", self.key.tokens, self.tokens)


def _headers(name: str, limit: int | None, left: float) -> dict[str, str]:
    if limit is None:
        return {}
    return {
        f"x-ratelimit-limit-{name}": str(limit),
        f"x-ratelimit-remaining-{name}": str(max(0, math.floor(left))),
        f"x-ratelimit-reset-{name}": f"{(limit - left) * 60 / limit:.3f}s",  # until the bucket is full
    }


class Limits:
    """Counts the requests and tokens of API keys."""

    def __init__(self, client: Redis, metrics: KeyMetrics, prefix: str = "") -> None:
        """Args: prefix: prefix of every Redis key."""
        self._client = client
        self._scripts = Scripts(client, 0, prefix)
        self._metrics = metrics
        self._prefix = prefix
        self._running: dict[str, set[str]] = defaultdict(set)
        """Running requests of this gateway, by API key id."""

    async def enter(self, key: ApiKey, request: str, tokens: int) -> Quota:
        """Count a request.

        Args:
            request: unique request id.
            tokens: tokens to reserve until the request ends; at most the key's whole limit.

        Raises:
            RateLimited: a limit of the key is used up.
            SessionStoreDown: the key's use is unknown, so the request is refused.
        """
        limits = _numbers(key.requests, key.tokens, key.concurrency)
        try:
            async with asyncio.timeout(PATIENCE):
                what: tuple[str | int, ...] = (request, _LEASE_MS, tokens, *limits)
                reply = await self._scripts.run_on("limits/enter", self._keys(key.id), *what)
        except TimeoutError as error:
            raise SessionStoreDown("the session store, which counts requests, does not answer") from error
        refusal, wait, quota = understood(lambda found: _quota(key, found), reply)
        if refusal is not None:
            self._metrics.limited.labels(key.tenant, refusal).inc()
            message = f"this API key has used up its {_NAMES[refusal]}"
            raise RateLimited(message, wait or _WAIT_FOR_ANOTHER, quota.headers)
        self._running[key.id].add(request)
        return quota

    async def leave(self, key: ApiKey, request: str, requests: int, tokens: int) -> None:
        """End a request and return `requests` and `tokens` to the key; negative `tokens` takes more.

        If the store does not answer, the reserved amounts stay used, and the place becomes free when its lease expires.
        """
        self._running[key.id].discard(request)
        if not self._running[key.id]:
            del self._running[key.id]
        what: tuple[str | int, ...] = (request, requests, tokens, *_numbers(key.requests, key.tokens))
        try:
            async with asyncio.timeout(PATIENCE):
                await self._scripts.run_on("limits/leave", self._keys(key.id), *what)
        except (SessionStoreDown, TimeoutError) as error:
            _log.warning("limits_not_settled", key=key.id, error=str(error))

    async def renew(self) -> None:
        """Renew the leases of the requests that run here, until cancelled."""
        while True:
            await asyncio.sleep(LEASE / 3)
            for key, requests in [*self._running.items()]:
                try:
                    await self._scripts.run_on("limits/renew", self._keys(key), _LEASE_MS, *requests)
                except SessionStoreDown as error:
                    _log.warning("limits_not_renewed", key=key, error=error.message)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _keys(self, name: str) -> tuple[str, str]:
        tag = f"{self._prefix}sd:1:key:{{{name}}}"
        return f"{tag}:b", f"{tag}:c"


def _numbers(*limits: int | None) -> tuple[int, ...]:
    return tuple(limit or 0 for limit in limits)


def _quota(key: ApiKey, reply: Reply) -> tuple[str | None, float, Quota]:
    """Return the name of the exhausted limit or None, the seconds until a retry can succeed, and the quota."""
    word, wait, requests, tokens = reply
    refusal = None if word == b"OK" else word.decode().lower()
    return refusal, float(wait) / 1000, Quota(key, float(requests), float(tokens))
