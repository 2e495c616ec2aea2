"""A verifier continues from another's KV: the same tokens, with speculation, and nothing is computed twice."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.kv.store import BlockCipher, SequenceBlocks
from tests.integration.kv.stage import BLOCK, DOMAIN, LENGTH, PROMPT, Stage, asked

TURN = 40
WHOLE = len(PROMPT) // BLOCK


async def move(here: Stage) -> None:
    """End the verifier that holds the KV."""
    (holder,) = await here.holders()
    await here.lose(holder)
    assert await here.holders() == []


async def test_another_turn_on_another_verifier_goes_on_from_the_stored_blocks(here: Stage) -> None:
    expected = here.target.greedy(PROMPT, LENGTH)
    assert await here.say(PROMPT, TURN) == expected[:TURN]
    await here.stored(WHOLE + 1)
    await move(here)
    answer = await here.answer((*PROMPT, *expected[:TURN]), 20)
    assert answer["choices"][0]["token_ids"] == expected[TURN : TURN + 20]
    assert await here.metric("specdec_kv_restored_tokens") == (WHOLE + 1) * BLOCK
    assert await here.metric("specdec_kv_block_hits") == WHOLE + 1
    sizes = [await here.blocks.strlen(key) for key in await here.keys()]
    assert await here.metric("specdec_kv_block_bytes", direction="out") == sum(sizes[: WHOLE + 1])
    assert await here.metric("specdec_kv_saved_seconds") >= 0
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


async def test_a_verifier_lost_midway_costs_no_token_and_its_blocks_are_restored(here: Stage) -> None:
    ids: list[int] = []
    body = asked(PROMPT, LENGTH) | {"stream": True}
    async with here.client.stream("POST", "/v1/completions", json=body) as events:
        async for line in events.aiter_lines():
            if not line.startswith("data: {"):
                continue
            ids += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"] or []
            if len(here.verifiers) == 2 and len(ids) >= 2 * BLOCK:
                await here.stored(WHOLE + 1)  # meanwhile the generation runs out of credit
                await move(here)
    assert len(here.verifiers) == 1
    assert ids == here.target.greedy(PROMPT, LENGTH)
    assert await here.metric("specdec_failovers") == 1
    assert await here.metric("specdec_kv_restored_tokens") > WHOLE * BLOCK


async def test_another_prompt_that_begins_alike_goes_on_from_what_is_shared(here: Stage) -> None:
    await here.say(PROMPT, 20)
    await here.stored(WHOLE)
    await move(here)
    other = (*PROMPT[: 2 * BLOCK + 7], *reversed(PROMPT))
    assert await here.say(other, 20) == here.target.greedy(other, 20)
    assert await here.metric("specdec_kv_restored_tokens") == 2 * BLOCK


async def test_blocks_of_one_user_are_nothing_to_another(here: Stage) -> None:
    said = await here.say()
    await here.stored(WHOLE)
    assert all(DOMAIN.encode() in key for key in await here.keys())
    await move(here)
    assert await here.say(user="bob") == said
    assert await here.metric("specdec_kv_restored_tokens") == 0


def cut(value: bytes) -> bytes:
    return value[:-1]


def flip(value: bytes) -> bytes:
    return value[:-20] + bytes([value[-20] ^ 1]) + value[-19:]


@pytest.mark.parametrize(
    ("spoil", "reason"), [(cut, "short"), (flip, "corrupt"), (None, "foreign"), (lambda _: b"", "absent")]
)
async def test_a_spoiled_block_is_a_miss_that_says_why_and_is_stored_anew(
    here: Stage, spoil: Callable[[bytes], bytes] | None, reason: str
) -> None:
    said = await here.say(PROMPT, 20)
    await here.stored(WHOLE)
    second, third = await ordered(here)
    whole: dict[bytes, bytes] = {key: await here.blocks.get(key) for key in (second, third)}  # type: ignore[misc]
    await here.blocks.set(second, spoil(whole[second]) if spoil else whole[third])
    await move(here)
    before = await here.metric("specdec_kv_block_misses", reason=reason)
    assert await here.say(PROMPT, 20) == said
    assert await here.metric("specdec_kv_block_misses", reason=reason) == before + 1
    assert await here.metric("specdec_kv_restored_tokens") == BLOCK
    assert await here.metric("specdec_kv_block_hits") == 1
    await here.stored(WHOLE)
    assert await here.blocks.strlen(second) == len(whole[second])


async def ordered(here: Stage) -> tuple[bytes, bytes]:
    """Return the keys of the prompt's second and third block."""
    (fingerprint,) = {key.split(b":")[2].decode() for key in await here.keys()}
    _, second, third = SequenceBlocks(fingerprint, DOMAIN, BLOCK).grow(PROMPT)
    return second.key.encode(), third.key.encode()


@pytest.mark.parametrize("kv_settings", [{"budget_bytes": 1}])
async def test_a_user_over_budget_stores_no_more(here: Stage, kv_settings: dict[str, Any]) -> None:
    await here.say()
    await here.say()
    assert await here.keys() == []
    assert await here.metric("specdec_kv_blocks_dropped", reason="budget") > 0


@pytest.mark.parametrize("kv_settings", [{"redis_url": "redis://127.0.0.1:1/0", "patience": 0.1}])
async def test_a_store_that_is_away_costs_no_generation(here: Stage, kv_settings: dict[str, Any]) -> None:
    assert await here.say() == here.target.greedy(PROMPT, LENGTH)[:40]
    assert await here.metric("specdec_kv_block_misses") == 1


@pytest.mark.parametrize("kv_settings", [{"key": "ab" * 32}])
async def test_encrypted_blocks_are_restored_and_a_changed_one_is_not(here: Stage) -> None:
    said = await here.say(PROMPT, 20)
    await here.stored(WHOLE)
    second, _ = await ordered(here)
    await here.blocks.set(second, flip(await here.blocks.get(second) or b""))
    await move(here)
    assert await here.say(PROMPT, 20) == said
    assert await here.metric("specdec_kv_restored_tokens") == BLOCK
    await here.stored(WHOLE)
    cipher = BlockCipher(bytes.fromhex("ab" * 32))
    values = {key.decode(): await here.blocks.get(key) for key in await here.keys()}
    assert all(cipher.decrypt(key, value or b"") for key, value in values.items())
