"""Observation of the running system: the commit latency from the gateways, and the logs of tokens from the store."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from gateway.store import lua
from specdec.wire.tokens import tokens_from_bytes

_SAMPLE = "specdec_session_store_seconds_bucket"


class CommitLatency:
    """The gateways' histogram of commits, summed over all gateways and their restarts."""

    def __init__(self, gateways: Sequence[str]) -> None:
        """Set the addresses at which the gateways serve /metrics."""
        self._gateways = gateways
        self._now: dict[str, Counter[float]] = {address: Counter() for address in gateways}
        self._before: Counter[float] = Counter()

    async def watch(self, every: float = 0.5) -> None:
        """Read the metrics every `every` seconds until cancelled."""
        async with httpx2.AsyncClient(timeout=1.0, trust_env=False) as http:
            while True:
                await asyncio.gather(*(self._read(http, address) for address in self._gateways))
                await asyncio.sleep(every)

    async def _read(self, http: httpx2.AsyncClient, address: str) -> None:
        try:
            text = (await http.get(f"http://{address}/metrics")).text
        except httpx2.TransportError:
            return
        counts = _buckets(text)
        if counts.total() < self._now[address].total():  # the gateway was restarted
            self._before += self._now[address]
        self._now[address] = counts

    def quantile(self, share: float) -> float:
        """Return the upper edge, in seconds, of the bucket that contains the quantile, or 0 without commits."""
        counts = sum(self._now.values(), self._before)
        total = counts[float("inf")]
        return next((edge for edge in sorted(counts) if total and counts[edge] >= share * total), 0.0)


def _buckets(text: str) -> Counter[float]:
    """Return the cumulative counts of commits by the upper edge of the bucket."""
    return Counter(
        {
            float(sample.labels["le"]): int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == _SAMPLE and sample.labels["op"] == "commit"
        }
    )


async def stored_logs(redis_url: str, generations: Iterable[str], prompt: int) -> dict[str, list[int]]:
    """Return the stored output tokens of each generation, by name. `prompt` tokens precede them in the log."""
    async with Redis.from_url(redis_url) as redis:
        names = list(generations)
        values = await redis.mget([lua.keys(_session(name))[1] for name in names]) if names else []
    return {
        name: tokens_from_bytes(value)[prompt:] for name, value in zip(names, values, strict=True) if value is not None
    }


async def stored_first_rounds(redis_url: str, generations: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return the cached prompt tokens of each stored round, by generation and number of tokens before the round."""
    found: dict[tuple[str, int], int] = {}
    async with Redis.from_url(redis_url) as redis:
        for name in generations:
            before = 0
            for entry, fields in await redis.xrange(lua.keys(_session(name))[2]):
                _, start, note = fields.get(b"r", b"").partition(b"{")  # its checksum precedes it
                if start:
                    found[name, before] = json.loads(start + note).get("cached_tokens", 0)
                before = int(entry.partition(b"-")[2]) // 2
    return found


def _session(generation: str) -> str:
    """Return the session of a generation, whose name consists of the session's name and the number of the turn."""
    return generation.rpartition("-")[0]
