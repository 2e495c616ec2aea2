"""Blocks on their way from verifiers into the store, behind the generations and never in front of them."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gateway.kv.metrics import KvMetrics
from gateway.kv.store import Block, BlockStore
from gateway.verifiers.verifier import BlockVerifier
from specdec.errors import SpecdecError

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Offer:
    """A block that a verifier has and the store may want."""

    source: BlockVerifier
    block: Block
    tokens: Sequence[int]
    """The sequence up to the block's end; all of it committed."""
    domain: str


class KvWriter:
    """A queue of bounded length, its oldest offer dropped for a new one, and the one task that empties it."""

    def __init__(self, store: BlockStore, metrics: KvMetrics, limit: int) -> None:
        self._store = store
        self._metrics = metrics
        self._offers: deque[Offer] = deque(maxlen=limit)
        self._news = asyncio.Event()

    def offer(self, offer: Offer) -> None:
        """Have a block stored some time."""
        if len(self._offers) == self._offers.maxlen:
            self._metrics.dropped.labels("queue").inc()
        self._offers.append(offer)
        self._news.set()

    async def run(self) -> None:
        """Store for ever; what goes wrong costs its block."""
        while True:
            await self._news.wait()
            self._news.clear()
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
        """Why the block was not stored; empty when it is in the store."""
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
