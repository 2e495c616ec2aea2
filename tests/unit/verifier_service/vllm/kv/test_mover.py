"""KV blocks move from one target on vLLM to another, bit for bit; nothing else is taken for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from multiprocessing import Pipe

import pytest
import torch

from specdec.engine.kv import frame as framing
from specdec.errors import InternalError
from specdec.rules import blocks
from specdec.wire.kv import KvSpan
from tests.unit.verifier_service.vllm.kv.kv_pair import BLOCK, KvTarget, Request, moved
from verifier_service.kv import blocks as movers
from verifier_service.kv.blocks import GONE, NO_ROOM, Restored
from verifier_service.vllm.kv.messages import Find, SharedKv
from verifier_service.vllm.kv.mover import VllmBlocks
from verifier_service.vllm.kv.port import KvAsker

TOKENS = tuple(range(3 * BLOCK + 5))
SPAN = KvSpan(TOKENS[: 3 * BLOCK], "salt", 0, BLOCK)


def request(name: str = "r") -> Request:
    return Request(name, list(TOKENS), "salt")


async def sent(values: Sequence[bytes]) -> AsyncIterator[bytearray]:
    for value in values:
        yield bytearray(value)


async def exported(target: KvTarget) -> list[bytes]:
    """Return the blocks of a target that has computed the tokens."""
    target.compute(request(), 1)
    with moved(target) as mover:
        assert await mover.find(TOKENS, "salt") == 3 * BLOCK
        assert await mover.find(TOKENS, "other") == 0
        return [await mover.export(stop - BLOCK, TOKENS[:stop], "salt") for stop in SPAN.ends]


async def restored(mover: VllmBlocks, values: Sequence[bytes], span: KvSpan = SPAN) -> Restored:
    return await mover.restore(span, sent(values))


@pytest.mark.parametrize("ranks", [1, 2])
async def test_what_one_target_computed_another_loads_bit_for_bit(ranks: int) -> None:
    first, second = KvTarget(ranks), KvTarget(ranks)
    values = await exported(first)
    assert all(block.ref_cnt == 0 for block in first.pool.blocks)
    with moved(second) as mover:
        assert await restored(mover, values) == Restored(3 * BLOCK, "")
        assert await mover.find(TOKENS, "salt") == 3 * BLOCK
    assert second.load(request(), 4) == 3 * BLOCK
    for ours, theirs in zip(first.caches, second.caches, strict=True):
        for source, copy in zip(ours, theirs, strict=True):
            assert torch.equal(source[1:4], copy[4:7])
    assert second.blocks.matched(request("s"), 0) == 0


async def test_a_gateways_block_may_be_several_of_vllm() -> None:
    first, second, span = KvTarget(), KvTarget(), KvSpan(TOKENS[: 2 * BLOCK], "salt", 0, 2 * BLOCK)
    first.compute(request(), 0)
    with moved(first) as mover:
        value = await mover.export(0, TOKENS[: 2 * BLOCK], "salt")
    with moved(second) as mover:
        assert await restored(mover, [value], span) == Restored(2 * BLOCK, "")
        assert mover.longest_value(2 * BLOCK) == len(value)
    assert second.load(request(), 0) == 2 * BLOCK
    assert torch.equal(first.caches[0][0][:2], second.caches[0][0][:2])


async def test_a_block_that_is_no_multiple_of_vllms_is_neither_given_nor_taken() -> None:
    target = KvTarget()
    target.compute(request(), 0)
    with moved(target) as mover:
        assert await mover.export(0, TOKENS[: BLOCK // 2], "salt") == b""
        assert await mover.export(BLOCK, TOKENS[: 3 * BLOCK], "other") == b""


async def corrupt(values: list[bytes]) -> tuple[Restored, KvTarget]:
    """Restore values of which the second one has a changed byte."""
    values[1] = values[1][:200] + bytes([values[1][200] ^ 1]) + values[1][201:]
    target = KvTarget()
    with moved(target) as mover:
        return await restored(mover, values), target


async def test_a_changed_byte_is_refused_with_what_follows() -> None:
    found, _ = await corrupt(await exported(KvTarget()))
    assert found == Restored(BLOCK, "corrupt")


async def test_a_checksum_that_is_not_checked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    values = await exported(KvTarget())
    monkeypatch.setattr(framing, "_checksum", lambda body: bytes(values[1][-16:]))
    values = [value[:-16] + values[1][-16:] for value in values]
    found, _ = await corrupt(values)
    assert found != Restored(BLOCK, "corrupt")


async def test_a_cut_value_is_refused() -> None:
    values = await exported(KvTarget())
    with moved(KvTarget()) as mover:
        assert await restored(mover, [values[0], values[1][:-1]]) == Restored(BLOCK, "short")


@pytest.mark.parametrize(
    ("fingerprint", "span"),
    [
        ("g", SPAN),
        ("f", KvSpan(SPAN.tokens, "other", 0, BLOCK)),
        ("f", KvSpan((9, *SPAN.tokens[1:]), "salt", 0, BLOCK)),
    ],
    ids=["fingerprint", "salt", "tokens"],
)
async def test_blocks_of_another_kind_are_refused(fingerprint: str, span: KvSpan) -> None:
    values = await exported(KvTarget())
    with moved(KvTarget(fingerprint=fingerprint)) as mover:
        assert await restored(mover, values, span) == Restored(0, "foreign")


async def test_a_hash_without_the_fingerprint_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rooted = blocks.root
    monkeypatch.setattr(blocks, "root", lambda fingerprint, domain="": rooted("", domain))
    values = await exported(KvTarget())
    with moved(KvTarget(fingerprint="g")) as mover:
        assert await restored(mover, values) == Restored(3 * BLOCK, "")


async def test_values_beyond_the_stage_find_no_room() -> None:
    values = await exported(KvTarget())
    with moved(KvTarget(staged_blocks=2)) as mover:
        assert await restored(mover, values) == Restored(2 * BLOCK, NO_ROOM)


async def test_the_oldest_values_leave_the_stage_for_new_ones() -> None:
    values = await exported(KvTarget())
    target = KvTarget(staged_blocks=3)
    with moved(target) as mover:
        await restored(mover, values)
        other = KvSpan(tuple(range(500, 500 + BLOCK)), "salt", 0, BLOCK)
        source = KvTarget()
        source.compute(Request("o", list(other.tokens), "salt"), 0)
        with moved(source) as from_source:
            value = await from_source.export(0, other.tokens, "salt")
        assert await restored(mover, [value], other) == Restored(BLOCK, "")
        assert await mover.find(TOKENS, "salt") == 0


async def test_blocks_after_missing_ones_are_of_no_use() -> None:
    values = await exported(KvTarget())
    with moved(KvTarget()) as mover:
        span = KvSpan(SPAN.tokens, "salt", BLOCK, BLOCK)
        assert await restored(mover, values[1:], span) == Restored(0, GONE)


async def test_what_vllm_dropped_is_not_exported() -> None:
    target = KvTarget()
    target.compute(request(), 0)
    target.pool.cached.clear()
    with moved(target) as mover:
        assert await mover.find(TOKENS, "salt") == 0
        assert await mover.export(0, TOKENS[:BLOCK], "salt") == b""


async def test_a_block_is_kept_while_it_is_copied() -> None:
    target = KvTarget()
    target.compute(request(), 0)
    kept = list[int]()

    def begin(transfers: object) -> None:
        kept.append(target.pool.blocks[0].ref_cnt)
        begun(transfers)  # type: ignore[arg-type]

    begun, target.workers[0].begin = target.workers[0].begin, begin  # type: ignore[method-assign]
    with moved(target) as mover:
        assert await mover.export(0, TOKENS[:BLOCK], "salt")
    assert (max(kept), target.pool.blocks[0].ref_cnt) == (1, 0)


async def test_a_lost_process_is_an_error_and_no_wait() -> None:
    ours, theirs = Pipe()
    mover = VllmBlocks(KvAsker(ours), SharedKv("f", BLOCK, 4))
    asking = asyncio.ensure_future(mover.find(TOKENS, "salt"))
    await asyncio.sleep(0)
    theirs.close()
    for asked in (asking, mover.find(TOKENS, "salt")):
        with pytest.raises(InternalError, match="lost"):
            await asked


async def test_a_caller_that_leaves_harms_no_other() -> None:
    target = KvTarget()
    target.compute(request(), 0)
    with moved(target) as mover:
        assert not mover._asker.ask(partial(Find, hashes=())).cancel()
        assert await mover.find(TOKENS, "salt") == 3 * BLOCK


def test_native_blocks_and_those_of_vllm_have_one_checked_frame() -> None:
    assert issubclass(VllmBlocks, movers.FramedBlocks)
    assert issubclass(movers.KvBlocks, movers.FramedBlocks)
