"""The parts that keep blocks of keys and values outside the verifiers, joined."""

from collections.abc import Callable
from typing import Self

from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.metrics import KvMetrics
from gateway.kv.reader import KvReader
from gateway.kv.store import BlockStore, RedisBlocks
from gateway.kv.verifier import KvVerifier
from gateway.kv.writer import KvWriter
from gateway.store import redis_client
from gateway.verifiers.verifier import BlockVerifier


class KvTier:
    """One a process."""

    def __init__(self, store: BlockStore, settings: KvSettings, metrics: KvMetrics) -> None:
        self._store = store
        self._block_tokens = settings.block_tokens
        self._reader = KvReader(store, settings, metrics)
        self._writer = KvWriter(store, metrics, settings.queue)

    @classmethod
    def of(cls, settings: KvSettings, registry: CollectorRegistry) -> Self | None:
        """As the settings say; None when they name no store.

        Raises:
            ConfigError: the store's URL is none.
        """
        if not settings.redis_url:
            return None
        store = RedisBlocks(redis_client.connect(settings.redis_url), settings.ttl, settings.budget_bytes)
        return cls(store, settings, KvMetrics(registry))

    def dialled(self, dial: Callable[[str], BlockVerifier]) -> Callable[[str], KvVerifier]:
        """Make verifiers as `dial` does, whose blocks are kept."""
        return lambda address: KvVerifier(dial(address), self._reader, self._writer, self._block_tokens)

    async def run(self) -> None:
        """Store what is offered, for ever."""
        await self._writer.run()

    async def close(self) -> None:
        """Let the connection go."""
        await self._store.close()
