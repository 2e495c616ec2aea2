"""Stores new KV blocks in the background, so that no generation waits."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gateway.config import KvSettings
from gateway.kv.store import Block, BlockStore
from gateway.metrics import KvMetrics
from gateway.verifiers.client import VerifierClient
from specdec.errors import SpecdecError

_SHARE = 0.25
"""Share of time spent on transfers to the store; the rest is left to verifiers and restores."""
_SHORT = 0.001
"""Shortest pause in seconds; shorter ones are skipped."""
_REMEMBERED = 16
"""Number of remembered block keys, as a multiple of the queue's capacity."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Offer:
    """Block that a verifier has and the store may lack."""

    source: VerifierClient
    block: Block
    tokens: Sequence[int]
    """Committed tokens of the sequence up to the block's end."""
    domain: str
    """Prefix cache domain, from `gateway.callers.caller.cache_domain`."""


class KvWriter:
    """Bounded queue of offers, which drops its oldest offer for a new one, and the task that stores them.

    When the queue is half full, it accepts only blocks that were offered before. A prefix that is used again saves
    more than the rest of a sequence that may never be reused.
    """

    def __init__(self, store: BlockStore, settings: KvSettings, metrics: KvMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._offers: asyncio.Queue[Offer] = asyncio.Queue(settings.queue)
        self._seen: OrderedDict[str, None] = OrderedDict()
        """Keys of the last offered blocks, oldest first."""

    def offer(self, offer: Offer) -> None:
        """Add an offer to the queue, unless the queue is half full and the block was never offered before."""
        if self._is_first(offer.block.key) and self._offers.qsize() > self._offers.maxsize // 2:
            self._metrics.dropped.labels("first_use").inc()
            return
        if self._offers.full():
            self._offers.get_nowait()
            self._metrics.dropped.labels("queue").inc()
        self._offers.put_nowait(offer)

    async def run(self) -> None:
        """Store offers in a limited share of the time, until cancelled; a failed offer is dropped."""
        while True:
            offer = await self._offers.get()
            began = time.monotonic()
            try:
                dropped = await self._write(offer)
            except SpecdecError as error:
                _log.info("kv_block_lost", key=offer.block.key, error=error.message)
                dropped = "failed"
            if dropped:
                self._metrics.dropped.labels(dropped).inc()
                continue
            pause = (time.monotonic() - began) * (1 / _SHARE - 1)
            if pause >= _SHORT:
                await asyncio.sleep(pause)

    async def _write(self, offer: Offer) -> str:
        """Store one block; return the reason if it was not stored, or an empty string if the store has it."""
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

    def _is_first(self, key: str) -> bool:
        """Whether a block is offered for the first time; the oldest keys beyond the limit are forgotten."""
        is_first = key not in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > _REMEMBERED * self._offers.maxsize:
            self._seen.popitem(last=False)
        return is_first
