"""Stores new KV blocks in the background, so that no generation waits for it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gateway.kv.metrics import KvMetrics
from gateway.kv.store import Block, BlockStore
from gateway.verifiers.client import VerifierClient
from specdec.errors import SpecdecError

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Offer:
    """A block that a verifier has and the store may not have."""

    source: VerifierClient
    block: Block
    tokens: Sequence[int]
    """The sequence up to the block's end; all of its tokens are committed."""
    domain: str
    """The name under which prefixes are shared: `gateway.request.cache_domain`."""


class KvWriter:
    """A bounded queue of offers, which drops its oldest offer for a new one, and the task that stores them."""

    def __init__(self, store: BlockStore, metrics: KvMetrics, limit: int) -> None:
        self._store = store
        self._metrics = metrics
        self._offers: deque[Offer] = deque(maxlen=limit)
        self._added = asyncio.Event()

    def offer(self, offer: Offer) -> None:
        """Add an offer to the queue."""
        if len(self._offers) == self._offers.maxlen:
            self._metrics.dropped.labels("queue").inc()
        self._offers.append(offer)
        self._added.set()

    async def run(self) -> None:
        """Store offers until it is cancelled; an offer that fails is dropped."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._offers:
                offer = self._offers.popleft()
                try:
                    dropped = await self._write(offer)
                except SpecdecError as error:
                    _log.info("kv_block_lost", key=offer.block.key, error=error.message)
                    dropped = "failed"
                if dropped:
                    self._metrics.dropped.labels(dropped).inc()

    async def _write(self, offer: Offer) -> str:
        """Store one block; returns why it was not stored, which is empty when the store has it."""
        block = offer.block
        if (await self._store.sizes([block.key]))[0]:
            return ""
        if await self._store.is_full(offer.domain):
            return "budget"
        value = await offer.source.export_kv(block.start, offer.tokens, offer.domain)
        if not value:
            return "gone"
        if not await self._store.put(offer.domain, block.key, value):
            return "budget"
        self._metrics.bytes.labels("in").inc(len(value))
        return ""
