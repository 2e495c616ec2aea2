"""The session store on a real server: the contract of every store, and behaviour specific to Redis."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect, server_facts
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from specdec.errors import Fenced, SessionDiverged, SessionNotFound, SessionStoreFull
from tests.contracts.session_store import (
    MAX_TOKENS,
    Backend,
    SessionContract,
    begin,
    commit,
    finish_turn,
    log_of,
    open_turn,
    renew,
)
from tests.contracts.turn_ownership import OwnershipContract
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration


class TestRedisSessionStore(SessionContract, OwnershipContract):
    """The contract over Redis."""

    @pytest.fixture
    async def backend(self, server: Server) -> AsyncIterator[Backend]:
        store = RedisSessionStore.at(server.url, StorePolicy(patience=0.5, max_tokens=MAX_TOKENS))
        yield Backend(store, server.expire_lease, server.lose_tokens)
        await store.close()


@pytest.fixture
def sid() -> str:
    return uuid.uuid4().hex


async def test_a_repeated_commit_writes_so_that_wait_means_something(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    epoch = await begin(store, sid)
    written = RoundCommit(sid, epoch, 3, [10])
    await commit(store, written)
    async with connect(server.url) as client:
        meta = lua.keys(sid)[0]
        await client.hset(meta, "lu", "0")
        await commit(store, written)
        assert int(await client.hget(meta, "lu") or 0) > 0


async def test_an_end_without_tokens_is_an_event_of_its_own_and_repeats(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    epoch = await begin(store, sid)
    await commit(store, RoundCommit(sid, epoch, 3, [10]))
    last = RoundCommit(sid, epoch, 4, [], finish="cancelled")
    assert await commit(store, last) == await commit(store, last)
    with pytest.raises(SessionDiverged):
        await commit(store, RoundCommit(sid, epoch, 4, [], finish="stop"))
    async with connect(server.url) as client:
        events = await client.xrange(lua.keys(sid)[2])
    assert [(name, fields[b"f"]) for name, fields in events[1:]] == [
        (b"1-8", b""),
        (b"1-9", b"cancelled"),
    ]


async def test_a_log_that_lost_tokens_is_not_written_to(store: RedisSessionStore, server: Server, sid: str) -> None:
    epoch = await begin(store, sid)
    async with connect(server.url) as client:
        await client.set(lua.keys(sid)[1], b"\x01\x00\x00\x00")
    with pytest.raises(SessionDiverged, match="should"):
        await commit(store, RoundCommit(sid, epoch, 3, [10]))


async def test_the_next_turn_begins_uncancelled_and_drops_older_events(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    for turn in (1, 2, 3):
        await open_turn(store, sid, f"r{turn}")
        await store.acquire(sid, "a")
        await store.cancel(sid, "t", turn)
        await finish_turn(store, sid)
    await open_turn(store, sid, "r4")
    assert await renew(store, sid, (await store.acquire(sid, "a")).epoch) is False
    async with connect(server.url) as client:
        assert [name for name, _ in await client.xrange(lua.keys(sid)[2])] == [b"3-22", b"3-24", b"4-30"]


async def test_scripts_come_back_after_the_server_forgot_them(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await open_turn(store, sid)
    async with connect(server.url) as client:
        await client.script_flush()
    assert (await store.acquire(sid, "a")).n == 3


async def test_commands_wait_for_a_connection_and_health_checks_do_not(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await open_turn(store, sid)
    async with connect(server.url) as client:
        await client.client_pause(120_000, all=False)  # writes wait in the server, and each holds a connection
        renewals = [asyncio.create_task(renew(store, sid, 0)) for _ in range(300)]
        try:
            await asyncio.sleep(0.1)
            await asyncio.wait_for(store.check(), 60)
            assert not any(renewal.done() for renewal in renewals)
        finally:
            await client.client_unpause()
            answers = await asyncio.gather(*renewals, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Fenced}


async def test_the_server_never_evicts_and_keeps_a_log(store: RedisSessionStore, server: Server) -> None:
    await store.check()
    facts = await server_facts(server.url)
    assert (facts.maxmemory_policy, facts.append_only) == ("noeviction", True)
    assert facts.version


async def test_gateways_of_a_store_share_one_secret_which_one_restores(server: Server) -> None:
    *stores, late = [RedisSessionStore.at(server.url) for _ in range(4)]
    secret, *others = await asyncio.gather(*(store.secret() for store in stores))
    assert others == [secret, secret]
    assert len(secret) == 32
    async with connect(server.url) as client:
        assert await client.ttl(lua.SECRET) > 3 * StorePolicy().ttl
        await client.expire(lua.SECRET, 60)
        assert await stores[0].secret() == secret
        assert await client.ttl(lua.SECRET) > 3 * StorePolicy().ttl
        await client.delete(lua.SECRET)
    assert [await store.secret() for store in (*stores, late)] == [secret] * 4
    for store in (*stores, late):
        await store.close()


async def test_a_full_server_refuses_a_commit_and_tears_nothing(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    epoch = await begin(store, sid)
    async with connect(server.url) as client:
        await client.config_set("maxmemory", "1")
        try:
            with pytest.raises(SessionStoreFull):
                await commit(store, RoundCommit(sid, epoch, 3, [10]))
            with pytest.raises(SessionStoreFull):
                await store.check()
        finally:
            await client.config_set("maxmemory", "0")
    await commit(store, RoundCommit(sid, epoch, 3, [10]))
    assert await log_of(store, sid) == [1, 2, 3, 10]


async def test_another_tenants_session_costs_the_steps_of_one_that_never_was(server: Server, sid: str) -> None:
    store = RedisSessionStore.at(server.url)
    for turn in range(3):
        await open_turn(store, sid, f"r{turn}")
        await finish_turn(store, sid)
    refusals: dict[str, Callable[[str], Awaitable[object]]] = {
        "get": lambda name: store.get(name, "other"),
        "read": lambda name: store.read(name, "other", 3),
        "cancel": lambda name: store.cancel(name, "other", 3),
        "delete": lambda name: store.delete(name, "other"),
        "open": lambda name: store.open(name, "r1", [1], b"{}", "fp", "other", create=False),
    }
    async with connect(server.url) as client:
        for what, refused in refusals.items():
            steps = []
            for name in (sid, sid, "0" * 32):  # the first call loads the script
                await client.config_resetstat()
                with pytest.raises(SessionNotFound):
                    await refused(name)
                found = await client.info("commandstats")
                steps.append({command: stats["calls"] for command, stats in found.items()})
            assert steps[1] == steps[2], what
    await store.close()


async def test_every_key_has_an_end_and_the_meta_outlives_the_log(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await store.create(sid, "t", "fp", ttl=50)
    await store.open(sid, "r1", [1], b"{}", "fp", "t", create=False)
    async with connect(server.url) as client:
        await store.acquire(sid, "a")
        await store.cancel(sid, "t", 1)
        left = [await client.ttl(key) for key in lua.keys(sid)]
    assert [round(seconds / 50) for seconds in left] == [2, 1, 1, 2, 1]


async def test_a_session_is_kept_until_a_turn_longer_than_its_life_is_over(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    log = lua.keys(sid)[1]
    await store.create(sid, "t", "fp", ttl=1)
    await store.open(sid, "r1", [1, 2, 3], b"{}", "fp", "t", create=False)
    async with connect(server.url) as client:
        assert await client.ttl(log) > 10
        epoch = (await store.acquire(sid, "a")).epoch
        for base, renewed in ((3, True), (4, False)):
            await client.hincrby(lua.keys(sid)[0], "lu", -4000)  # as if a third of the lease had passed
            for key in lua.keys(sid)[:4]:
                await client.pexpire(key, 5000)
            if renewed:
                await renew(store, sid, epoch)
            else:
                await commit(store, RoundCommit(sid, epoch, base, [4]))
            assert await client.ttl(log) > 20, "all keys outlive two leases"
            await client.pexpire(log, 5000)
            await commit(store, RoundCommit(sid, epoch, base + (not renewed), [4]))
            assert await client.ttl(log) <= 5, "which they do for a while, so that not every round extends them"
        await commit(store, RoundCommit(sid, epoch, 6, [5], finish="stop"))
        assert await client.pttl(log) <= 1000


async def test_new_turns_are_refused_before_memory_is_full_and_others_continue(server: Server, sid: str) -> None:
    store = RedisSessionStore.at(server.url)
    epoch = await begin(store, sid)
    async with connect(server.url) as client:
        used = int((await client.info("memory"))["used_memory"])
        await client.config_set("maxmemory", str(round(used / 0.9)))
        fresh = RedisSessionStore.at(server.url, StorePolicy(patience=0))
        try:
            with pytest.raises(SessionStoreFull):
                await fresh.open(uuid.uuid4().hex, "r1", [1], b"{}", "fp", "t")
            await commit(fresh, RoundCommit(sid, epoch, 3, [10]))
            assert await log_of(fresh, sid) == [1, 2, 3, 10]
        finally:
            await client.config_set("maxmemory", "0")
            await fresh.close()
            await store.close()
