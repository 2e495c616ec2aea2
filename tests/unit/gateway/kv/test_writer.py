"""Storing has the lowest priority: it is bounded, and a failure costs one block."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.store import Block
from gateway.kv.writer import KvWriter, Offer
from gateway.metrics import KvMetrics
from gateway.tasks import cancel_and_wait
from specdec.errors import NoVerifier
from tests.unit.gateway.kv.memory_blocks import MemoryBlocks


class Source:
    """A verifier that has all blocks except some."""

    def __init__(self, gone: Sequence[int] = (), lost: Sequence[int] = ()) -> None:
        self.gone, self.lost = gone, lost
        self.asked: list[int] = []

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        self.asked.append(start)
        if start in self.lost:
            raise NoVerifier("lost")
        return b"" if start in self.gone else b"value"


def offer(source: Any, start: int, domain: str = "d") -> Offer:
    return Offer(source, Block(f"k{start}", start, start + 16), (), domain)


async def written(writer: KvWriter) -> None:
    task = asyncio.create_task(writer.run())
    for _ in range(50):
        await asyncio.sleep(0)
    await cancel_and_wait(task)


async def test_the_oldest_offers_are_dropped_for_new_ones_and_counted() -> None:
    registry, store, source = CollectorRegistry(), MemoryBlocks(), Source()
    writer = KvWriter(store, KvSettings(queue=2), KvMetrics(registry))
    for _ in range(2):
        for start in (0, 16, 32):
            writer.offer(offer(source, start))
    await written(writer)
    assert store.blocks == {"k16": b"value", "k32": b"value"}
    assert registry.get_sample_value("specdec_kv_blocks_dropped_total", {"reason": "queue"}) == 3
    assert registry.get_sample_value("specdec_kv_block_bytes_total", {"direction": "in"}) == 10


async def test_from_half_a_queue_on_only_a_block_that_comes_again_is_taken() -> None:
    registry, store, source = CollectorRegistry(), MemoryBlocks(), Source()
    writer = KvWriter(store, KvSettings(queue=4), KvMetrics(registry))
    for start in (0, 16, 32, 48, 64):
        writer.offer(offer(source, start))
    writer.offer(offer(source, 64))
    await written(writer)
    assert list(store.blocks) == ["k0", "k16", "k32", "k64"]
    assert registry.get_sample_value("specdec_kv_blocks_dropped_total", {"reason": "first_use"}) == 2


async def test_storing_takes_a_quarter_of_the_time() -> None:
    class Slow(Source):
        async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
            times.append(time.monotonic())
            await asyncio.sleep(0.02)
            return b"value"

    times: list[float] = []
    writer = KvWriter(MemoryBlocks(), KvSettings(queue=9), KvMetrics(CollectorRegistry()))
    for start in (0, 16, 32):
        writer.offer(offer(Slow(), start))
    task = asyncio.create_task(writer.run())
    async with asyncio.timeout(20):
        while len(times) < 3:  # noqa: ASYNC110 - in the writer
            await asyncio.sleep(0.005)
    await cancel_and_wait(task)
    assert times[2] - times[0] >= 2 * 0.02 / 0.25


async def test_a_block_that_is_stored_is_not_exported_again() -> None:
    store, source = MemoryBlocks(), Source()
    writer = KvWriter(store, KvSettings(queue=9), KvMetrics(CollectorRegistry()))
    for _ in range(2):
        writer.offer(offer(source, 0))
    await written(writer)
    assert source.asked == [0]


async def test_what_cannot_be_stored_is_counted_by_why_and_the_rest_is_stored() -> None:
    registry, store = CollectorRegistry(), MemoryBlocks()
    source = Source(gone=[0], lost=[16])
    writer = KvWriter(store, KvSettings(queue=9), KvMetrics(registry))
    for start, domain in ((0, "d"), (16, "d"), (32, "full"), (48, "d")):
        writer.offer(offer(source, start, domain))
    await written(writer)
    assert list(store.blocks) == ["k48"]
    for reason in ("gone", "failed", "budget"):
        assert registry.get_sample_value("specdec_kv_blocks_dropped_total", {"reason": reason}) == 1
    assert 32 not in source.asked


async def test_a_store_that_comes_back_is_written_to_again() -> None:
    store, source = MemoryBlocks(), Source()
    writer = KvWriter(store, KvSettings(queue=9), KvMetrics(CollectorRegistry()))
    store.down = True
    writer.offer(offer(source, 0))
    await written(writer)
    assert not store.blocks
    store.down = False
    writer.offer(offer(source, 16))
    await written(writer)
    assert list(store.blocks) == ["k16"]
