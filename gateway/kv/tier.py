"""The KV tier: joins the parts that keep KV blocks outside the verifiers."""

from collections.abc import Callable
from typing import Self

from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.cipher import BlockCipher
from gateway.kv.metrics import KvMetrics
from gateway.kv.reader import KvReader
from gateway.kv.store import BlockStore
from gateway.kv.verifier import KvVerifier
from gateway.kv.writer import KvWriter
from gateway.store import redis_client
from gateway.verifiers.verifier import BlockVerifier


class KvTier:
    """The store of KV blocks, with what reads and writes it; a process has one at most."""

    def __init__(self, store: BlockStore, settings: KvSettings, metrics: KvMetrics) -> None:
        self._store = store
        self._block_tokens = settings.block_tokens
        self._reader = KvReader(store, settings, metrics)
        self._writer = KvWriter(store, metrics, settings.queue)

    @classmethod
    def of(cls, settings: KvSettings, registry: CollectorRegistry) -> Self | None:
        """The tier of the settings, or None when they name no store; raises ConfigError when its URL is malformed."""
        if not settings.redis_url:
            return None
        store = BlockStore(
            redis_client.connect(settings.redis_url), settings.ttl, settings.budget_bytes, _cipher(settings)
        )
        return cls(store, settings, KvMetrics(registry))

    def dialling(self, dial: Callable[[str], BlockVerifier]) -> Callable[[str], KvVerifier]:
        """A dial function like `dial`, whose verifiers use the tier."""
        return lambda address: KvVerifier(dial(address), self._reader, self._writer, self._block_tokens)

    async def run(self) -> None:
        """Store the blocks that are offered; runs until it is cancelled."""
        await self._writer.run()

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()


def _cipher(settings: KvSettings) -> BlockCipher | None:
    return BlockCipher(bytes.fromhex(settings.key.get_secret_value())) if settings.key else None
