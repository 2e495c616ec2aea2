"""A lookup restores blocks where that pays, and delays a generation at most by its patience."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.reader import Bandwidth, KvReader, worth_restoring
from gateway.kv.store import SequenceBlocks
from gateway.metrics import KvMetrics
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from specdec.wire.kv import KvSpan
from tests.support.debug_logs import debug_logs
from tests.unit.gateway.kv.memory_blocks import MemoryBlocks

BLOCK = 16
TOKENS = tuple(range(3 * BLOCK + 1))
BLOCKS = SequenceBlocks("f", "d", BLOCK).grow(TOKENS)
CALL = GenerationCall(
    tokens=TOKENS,
    prompt_len=len(TOKENS),
    sampling=SamplingParams(),
    max_tokens=9,
    stop_token_ids=(),
    speculation=Speculation(Mode.REJECTION),
    cache_salt="d",
    session_id="a1",
    epoch=3,
)


class Target:
    """A verifier that has KV of `held` tokens and accepts every restored span."""

    address = "here:1"

    def __init__(self, held: int = 0, pause: float = 0.0) -> None:
        self.held = held
        self.pause = pause
        self.spans: list[KvSpan] = []

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        await asyncio.sleep(self.pause)
        return min(self.held, len(tokens))

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        self.spans.append(span)
        return len(span.tokens), ""


class Stage:
    """A reader over a store that has some of the blocks."""

    def __init__(self, stored: int = 3, patience: float = 30.0) -> None:
        self.registry, self.store = CollectorRegistry(), MemoryBlocks()
        self.store.blocks = {block.key: b"value" for block in BLOCKS[:stored]}
        self._reader = KvReader(self.store, KvSettings(block_tokens=BLOCK, patience=patience), KvMetrics(self.registry))

    async def restore(self, target: Any, rate: float = 0.0) -> int:
        return await self._reader.restore(target, CALL, BLOCKS, rate)

    def misses(self, reason: str) -> float:
        return self.registry.get_sample_value("specdec_kv_block_misses_total", {"reason": reason}) or 0.0


async def test_only_what_the_verifier_lacks_is_fetched() -> None:
    stage, target = Stage(), Target(held=BLOCK)
    assert await stage.restore(target) == 3
    assert [(span.start, len(span.tokens)) for span in target.spans] == [(BLOCK, 3 * BLOCK)]
    assert stage.registry.get_sample_value("specdec_kv_restored_tokens_total") == 2 * BLOCK
    target.held = 3 * BLOCK
    assert await stage.restore(target) == 3
    assert len(target.spans) == 1


async def test_blocks_are_fetched_up_to_the_first_that_is_absent() -> None:
    stage, target = Stage(stored=2), Target()
    assert await stage.restore(target) == 2
    assert len(target.spans[0].tokens) == 2 * BLOCK
    assert stage.misses("absent") == 1
    assert stage.store.touched == [(block.key, len(b"value")) for block in BLOCKS[:2]]


async def test_a_lookup_tells_restored_tokens_from_those_that_the_verifier_had() -> None:
    with debug_logs() as logs:
        await Stage(stored=2).restore(Target(held=BLOCK))
        await Stage(stored=0).restore(Target(held=BLOCK))
    call = {"session": "a1", "epoch": 3, "verifier": "here:1", "blocks": 3}
    common = {"event": "kv_lookup", "log_level": "debug", **call}
    assert logs == [
        {**common, "known": 2, "miss": "absent", "held": BLOCK, "restored": BLOCK},
        {**common, "known": 0, "miss": "absent", "held": 0, "restored": 0},
    ]


async def test_once_measured_blocks_that_computing_beats_are_left_where_they_are() -> None:
    stage, target = Stage(), Target()
    await stage.restore(target, rate=1e12)
    assert len(target.spans) == 1
    assert await stage.restore(target, rate=1e12) == 3
    assert len(target.spans) == 1
    assert stage.misses("slower") == 1
    await stage.restore(target, rate=1e-3)
    assert len(target.spans) == 2


async def test_a_late_or_failed_lookup_is_a_miss_and_the_next_is_left_out() -> None:
    late = Stage(patience=0.001)
    assert await late.restore(Target(pause=30.0)) == 3
    assert late.misses("late") == 1
    down, target = Stage(), Target()
    down.store.down = True
    assert await down.restore(target) == 0
    assert down.misses("failed") == 1
    down.store.down = False
    assert await down.restore(target) == 0
    assert target.spans == []


@pytest.mark.parametrize(
    ("size", "bandwidth", "rate", "worth"),
    [
        (1000, 100.0, 99.0, True),
        (1000, 100.0, 101.0, False),
        (1000, 100.0, 100.0, False),
        (10**12, None, 1e6, True),
        (10**12, 1.0, 0.0, True),
    ],
)
def test_fetching_must_beat_computing_where_both_are_known(
    size: int, bandwidth: float | None, rate: float, worth: bool
) -> None:
    assert worth_restoring(1000, size, bandwidth, rate) is worth


def test_nothing_is_not_worth_fetching() -> None:
    assert not worth_restoring(0, 0, None, 0.0)


def test_bandwidth_follows_what_is_measured_and_is_forgotten_in_time() -> None:
    now = [0.0]
    bandwidth = Bandwidth(lambda: now[0])
    assert bandwidth.value is None
    bandwidth.observe(100, 1.0)
    assert bandwidth.value == 100.0
    bandwidth.observe(200, 1.0)
    assert bandwidth.value == pytest.approx(130.0)
    now[0] = 59.0
    assert bandwidth.value is not None
    now[0] = 61.0
    assert bandwidth.value is None
    bandwidth.observe(50, 1.0)
    assert bandwidth.value == 50.0


def test_transfers_that_overlap_are_measured_together() -> None:
    now = [0.0]
    bandwidth = Bandwidth(lambda: now[0])
    with bandwidth.transfer() as first, bandwidth.transfer() as second:
        now[0] = 0.25
        first(100)
        now[0] = 0.5
        second(100)
    assert bandwidth.value == 400.0


def test_a_transfer_that_failed_is_not_measured() -> None:
    now = [0.0]
    bandwidth = Bandwidth(lambda: now[0])
    with suppress(TimeoutError), bandwidth.transfer():
        now[0] = 0.5
        raise TimeoutError
    assert bandwidth.value is None


def test_a_path_that_is_never_idle_is_measured_too() -> None:
    now = [0.0]
    bandwidth = Bandwidth(lambda: now[0])
    with bandwidth.transfer():
        with bandwidth.transfer() as moved:
            now[0] = 2.0
            moved(100)
        assert bandwidth.value == 50.0
