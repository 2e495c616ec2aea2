"""KV blocks of verifiers on vLLM in the gateway's store: a prompt moves without being computed again.

The first verifier is killed when its readers have left unfinished answers. The second one gets the blocks of the
prompts as a gateway moves them, and ends the answers. The third one has blocks of another length.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import KvSettings
from gateway.kv.reader import KvReader
from gateway.kv.store import Block, SequenceBlocks
from gateway.metrics import KvMetrics
from gateway.verifiers.client import VerifierClient
from specdec.rules.speculation import Speculation
from specdec.wire.generation import GenerationCall, VerifierInfo
from specdec.wire.kv import KvSpan
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.unit.gateway.kv.memory_blocks import MemoryBlocks
from tests.vllm.moved_sessions import BLOCK, COUNT, DEMO, KINDS, PROMPT_LEN, TOKENS, asks_of, beginnings
from tests.vllm.server import HAS_VLLM, VllmVerifier, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

SLOW = tuple(7 + place * 11 % 200 for place in range(PROMPT_LEN))
"""Prompt whose blocks come too slowly."""
CHANGED = tuple(9 + place * 13 % 200 for place in range(PROMPT_LEN))
"""Prompt whose second block is changed in the store."""
KV_BYTES = 2**27


@dataclass
class Seen:
    """What the verifiers have done."""

    infos: dict[str, VerifierInfo] = field(default_factory=dict)
    native: dict[str, list[Done]] = field(default_factory=dict)
    begun: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    """Tokens that the clients of the first verifier had when it was killed."""
    rest: dict[str, list[Done]] = field(default_factory=dict)
    """The rest of the answers, from the second verifier."""
    slow: tuple[int, str] = (0, "")
    """Tokens that the second verifier had of the slow prompt, and the reason."""
    changed: tuple[int, str] = (0, "")
    """Tokens that the second verifier had of the changed prompt, and the reason."""
    foreign: tuple[int, str] = (0, "")
    """Tokens that the third verifier took of the first one's, and the reason why no more."""
    log: str = ""
    """Log of the first verifier."""


class Store:
    """A store of blocks as a gateway uses it, in memory."""

    def __init__(self) -> None:
        self.registry, self.blocks = CollectorRegistry(), MemoryBlocks()
        self.reader = KvReader(self.blocks, KvSettings(patience=300.0), KvMetrics(self.registry))

    async def save(self, client: VerifierClient, info: VerifierInfo, prompt: tuple[int, ...]) -> list[Block]:
        """Store the blocks of a prompt that a verifier has."""
        made = SequenceBlocks(info.kv_fingerprint, "", info.kv_block_tokens).grow(prompt)
        for block in made:
            value = await client.export_kv(block.start, prompt[: block.stop], "")
            await self.blocks.put("", block.key, value)
        return made

    async def restore(
        self, client: VerifierClient, info: VerifierInfo, tokens: tuple[int, ...], rate: float = 0.0
    ) -> tuple[int, str]:
        """Restore blocks; return the tokens that the verifier has then, and the last reason of a miss."""
        before = self._misses()
        call = GenerationCall(
            tokens=tokens,
            prompt_len=len(tokens),
            sampling=KINDS["greedy"][1],
            max_tokens=9,
            stop_token_ids=(),
            speculation=Speculation(KINDS["greedy"][0]),
        )
        wanted = SequenceBlocks(info.kv_fingerprint, "", info.kv_block_tokens).grow(tokens, len(tokens) - 1)
        await self.reader.restore(client, call, wanted, rate)
        missed = [name for name, count in self._misses().items() if count > before.get(name, 0.0)]
        return await client.find_kv(tokens, ""), "".join(missed)

    def _misses(self) -> dict[str, float]:
        found = [each for metric in self.registry.collect() for each in metric.samples]
        return {each.labels["reason"]: each.value for each in found if each.name == "specdec_kv_block_misses_total"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("kv")))


async def _seen(folder: Path) -> Seen:
    seen, store = Seen(), Store()
    async with running_drafter(DEMO / "drafter") as drafts:
        async with running_verifier(DEMO / "target", drafts.address, kv_bytes=KV_BYTES) as client:
            seen.native = {name: await generate(client, asks_of(name), COUNT) for name in KINDS}
            seen.infos["native"] = await _info(client.address)
        async with vllm_verifier(DEMO / "target", folder, drafts.address, kv_bytes=KV_BYTES) as first:
            await _begin(first, seen, store)
            seen.log = first.log.read_text(encoding="utf-8")
            first.kill()
        async with vllm_verifier(DEMO / "target", folder, drafts.address, kv_bytes=KV_BYTES) as second:
            await _go_on(second, seen, store)
    other: dict[str, Any] = {"kv_bytes": KV_BYTES, "vllm": {"engine_args": {"block_size": BLOCK // 2}}}
    async with vllm_verifier(DEMO / "target", folder, **other) as third:
        await _refuse(third, seen, store)
    return seen


async def _begin(first: VllmVerifier, seen: Seen, store: Store) -> None:
    info = seen.infos["first"] = await _info(first.address)
    client = VerifierClient(first.address)
    for name in KINDS:
        seen.begun[name] = await beginnings(first.client, asks_of(name))
        for ask in asks_of(name):
            await store.save(client, info, ask.prompt)
    for prompt in (SLOW, CHANGED):
        await generate(first.client, [_one(prompt)], 1)
        made = await store.save(client, info, prompt)
    value = store.blocks.blocks[made[1].key]
    store.blocks.blocks[made[1].key] = value[:999] + bytes([value[999] ^ 1]) + value[1000:]
    await client.close()


async def _go_on(second: VllmVerifier, seen: Seen, store: Store) -> None:
    info = seen.infos["second"] = await _info(second.address)
    client = VerifierClient(second.address)
    for name in KINDS:
        asks = asks_of(name, seen.begun[name])
        for ask in asks:
            await store.restore(client, info, (*ask.prompt, *ask.committed))
        seen.rest[name] = await generate(second.client, asks, COUNT)
    seen.changed = await store.restore(client, info, CHANGED)
    slow, rate = Store(), (await _info(second.address)).prefill_rate
    slow.blocks.blocks = store.blocks.blocks
    slow.reader._bandwidth.observe(1, 1.0)
    seen.slow = await slow.restore(client, info, SLOW, rate)
    await client.close()


async def _refuse(third: VllmVerifier, seen: Seen, store: Store) -> None:
    seen.infos["third"], client = await _info(third.address), VerifierClient(third.address)
    prompt, info = asks_of("greedy")[0].prompt, seen.infos["first"]
    key = SequenceBlocks(info.kv_fingerprint, "", BLOCK).grow(prompt)[0].key
    span = KvSpan(prompt[:BLOCK], "", 0, BLOCK)
    seen.foreign = await client.restore_kv(span, [store.blocks.blocks[key]])
    await client.close()


async def _info(address: str) -> VerifierInfo:
    client = VerifierClient(address)
    info = await client.info(60.0)
    await client.close()
    return info


def _one(prompt: tuple[int, ...]) -> Ask:
    mode, params = KINDS["greedy"]
    return Ask(mode, params, 4, prompt, 2)


@pytest.mark.parametrize("name", KINDS)
def test_a_moved_session_goes_on_with_the_same_tokens(name: str, seen: Seen) -> None:
    whole = [begun + done.tokens for begun, done in zip(seen.begun[name], seen.rest[name], strict=True)]
    assert whole == [done.tokens for done in seen.native[name]]
    assert all(0 < len(tokens) < TOKENS for tokens in seen.begun[name])


@pytest.mark.parametrize("name", KINDS)
def test_a_moved_session_finds_the_blocks_of_its_prompt(name: str, seen: Seen) -> None:
    assert [done.rounds[0].cached_tokens for done in seen.rest[name]] == [PROMPT_LEN // BLOCK * BLOCK] * COUNT


def test_blocks_slower_than_computing_are_not_fetched(seen: Seen) -> None:
    assert seen.slow == (0, "slower")


def test_a_changed_block_is_refused_and_the_one_before_it_is_taken(seen: Seen) -> None:
    assert seen.changed == (BLOCK, "corrupt")


def test_sessions_move_between_backends_and_blocks_do_not(seen: Seen) -> None:
    assert len({info.system_fingerprint for info in seen.infos.values()}) == 1
    assert seen.infos["first"].kv_fingerprint == seen.infos["second"].kv_fingerprint
    assert seen.infos["first"].kv_fingerprint not in ("", seen.infos["native"].system_fingerprint)
    assert seen.infos["native"].kv_fingerprint == ""
    assert "vllm only, not native" in seen.log


def test_blocks_of_another_layout_are_foreign(seen: Seen) -> None:
    assert seen.infos["third"].kv_fingerprint != seen.infos["first"].kv_fingerprint
    assert seen.foreign == (0, "foreign")
