"""A tenant's blocks never exceed its budget with any number of writers, and deleted blocks make room."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from gateway.callers.caller import cache_domain
from gateway.config import KvSettings
from gateway.kv.store import BlockStore
from tests.integration.sessions.server import Server

BUDGET = 10_000
LARGEST = 900
ANN = [cache_domain("user:ann", salt) for salt in ("", "one", "two")]
BOB = cache_domain("user:bob", "")


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def blocks(server: Server, redis: Redis) -> AsyncIterator[Callable[..., BlockStore]]:
    """Return a function that opens another gateway's connection to the block store."""
    made: list[BlockStore] = []

    def make(ttl: float = 3600.0, budget: int = BUDGET) -> BlockStore:
        made.append(BlockStore(Redis.from_url(server.url), KvSettings(ttl=ttl, budget_bytes=budget)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def key(domain: str, number: int) -> str:
    return f"kv:1:f:{domain}:{number}"


async def stored(redis: Redis, domains: list[str]) -> int:
    """Return the bytes of all values of the domains' blocks."""
    keys = [each async for each in redis.scan_iter("kv:1:f:*")]
    ours = [each for each in keys if each.split(b":")[3].decode() in domains]
    return sum([await redis.strlen(each) for each in ours])


async def test_the_budget_holds_over_salts_and_gateways_that_write_at_once(
    redis: Redis, blocks: Callable[..., BlockStore]
) -> None:
    gateways, rng = [blocks() for _ in range(4)], random.Random(5)

    async def write(gateway: BlockStore, start: int) -> None:
        for number in range(start, start + 40):
            domain = rng.choice(ANN)
            await gateway.put(domain, key(domain, number), rng.randbytes(rng.randint(1, LARGEST)))
            assert await stored(redis, ANN) <= BUDGET

    await asyncio.gather(*(write(gateway, 25 * place) for place, gateway in enumerate(gateways)))
    assert await stored(redis, ANN) > BUDGET - LARGEST
    assert await gateways[0].is_full(ANN[0])
    assert not await gateways[0].is_full(BOB)
    assert await gateways[0].put(BOB, key(BOB, 0), bytes(BUDGET))


async def test_a_block_that_comes_again_counts_once(blocks: Callable[..., BlockStore]) -> None:
    store = blocks()
    for _ in range(3):
        assert await store.put(BOB, key(BOB, 0), bytes(BUDGET))
    assert not await store.put(BOB, key(BOB, 1), b"x")


async def test_what_the_server_evicted_makes_room(redis: Redis, blocks: Callable[..., BlockStore]) -> None:
    store = blocks()
    assert await store.put(BOB, key(BOB, 0), bytes(BUDGET))
    assert not await store.put(BOB, key(BOB, 1), b"x")
    await redis.delete(key(BOB, 0))
    assert await store.put(BOB, key(BOB, 1), bytes(BUDGET))


async def test_what_expired_makes_room_and_what_is_used_does_not_expire(
    redis: Redis, blocks: Callable[..., BlockStore]
) -> None:
    brief, patient = blocks(ttl=0.3), blocks()
    for number in range(2):
        assert await brief.put(BOB, key(BOB, number), bytes(BUDGET // 2))
    await patient.touch(BOB, [key(BOB, 0)], [BUDGET // 2])
    async with asyncio.timeout(20):
        while await redis.exists(key(BOB, 1)):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.02)
    assert not await patient.put(BOB, key(BOB, 2), bytes(BUDGET))
    assert await patient.put(BOB, key(BOB, 2), bytes(BUDGET // 2))
    assert await redis.pttl(key(BOB, 0)) > 60_000
    assert await redis.pttl("kv:1:used:" + BOB) >= await redis.pttl(key(BOB, 0))


async def test_a_lost_ledger_is_written_anew_by_what_is_used(redis: Redis, blocks: Callable[..., BlockStore]) -> None:
    store = blocks()
    assert await store.put(BOB, key(BOB, 0), bytes(BUDGET))
    await redis.delete("kv:1:used:" + BOB)
    await store.touch(BOB, [key(BOB, 0), key(BOB, 9)], [BUDGET, 5])
    assert not await store.put(BOB, key(BOB, 1), b"x")
    assert await redis.zcard("kv:1:used:" + BOB) == 1


async def test_the_documented_rights_are_enough(server: Server, redis: Redis) -> None:
    rights = ["+@read", "+@write", "+@scripting", "+@connection", "-@dangerous", "+info", "+time"]
    await redis.acl_setuser("blocks", enabled=True, passwords=["+pw"], keys=["kv:1:*"], commands=rights)
    store = BlockStore(Redis.from_url(f"unix://blocks:pw@{server.url.rpartition('@')[2]}"), KvSettings(budget_bytes=10))
    assert await store.put(BOB, key(BOB, 0), b"x")
    await store.touch(BOB, [key(BOB, 0)], [1])
    assert await store.sizes([key(BOB, 0)]) == [1]
    assert await store.get(key(BOB, 0)) == b"x"
    assert not await store.is_full(BOB)
    await store.drop(key(BOB, 0))
    await store.close()
