"""Sessions as a whole, from a real server: made, looked at, read back, listed and forgotten."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.sessions import Commit, SessionState, StoredRound
from specdec.errors import (
    Fenced,
    IdempotencyKeyReused,
    SessionExpired,
    SessionNotFound,
    SessionStoreFull,
    TurnOver,
)
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture
def sid() -> str:
    return uuid.uuid4().hex


async def begin(store: RedisSessionStore, sid: str, request: str = "r1", digest: str = "d") -> int:
    """Open a turn and own it."""
    await store.open(sid, request, [1, 2, 3], b"{}", "fp", "t", digest=digest)
    return (await store.acquire(sid, "a")).epoch


async def test_a_session_that_was_made_has_no_turns_until_one_is_opened(store: RedisSessionStore, sid: str) -> None:
    with pytest.raises(SessionNotFound):
        await store.open(sid, "r1", [1], b"{}", "fp", "t", create=False)
    await store.create(sid, "t", "fp")
    view = await store.look(sid, "t")
    assert (view.turn, view.n, view.state, view.model_fingerprint) == (0, 0, SessionState.DONE, "fp")
    assert (await store.open(sid, "r1", [1], b"{}", "fp", "t", expect_turn=0, create=False)).turn == 1


async def test_making_a_session_again_leaves_it_as_it_is(store: RedisSessionStore, sid: str) -> None:
    await store.create(sid, "t", "fp")
    await store.open(sid, "r1", [1], b"{}", "fp", "t", create=False)
    await store.create(sid, "t", "fp")
    assert (await store.look(sid, "t")).turn == 1


async def test_a_look_knows_which_turn_a_request_opened(store: RedisSessionStore, sid: str) -> None:
    await begin(store, sid)
    assert (await store.look(sid, "t", "r1")).request_turn == 1
    assert (await store.look(sid, "t", "r2")).request_turn is None


async def test_a_request_id_with_another_digest_is_a_mistake(store: RedisSessionStore, sid: str) -> None:
    await begin(store, sid, digest="one")
    with pytest.raises(IdempotencyKeyReused):
        await store.open(sid, "r1", [1, 2, 3], b"{}", "fp", "t", digest="two")


async def test_a_turn_is_read_back_whole_or_from_a_length_on(store: RedisSessionStore, sid: str) -> None:
    epoch = await begin(store, sid)
    await store.commit(Commit(sid, epoch, 3, [10, 11], note=b"one"))
    await store.commit(Commit(sid, epoch, 5, [12], note=b"two"))
    whole = await store.read(sid, "t", 1)
    assert (whole.state, whole.prompt, whole.params) == (SessionState.GENERATING, (1, 2, 3), b"{}")
    assert whole.rounds == (StoredRound((10, 11), "", b"one"), StoredRound((12,), "", b"two"))
    assert 0 < whole.lease_left <= 10
    assert (await store.read(sid, "t", 1, after=5)).rounds == whole.rounds[1:]
    assert (await store.read(sid, "t", 1, after=6)).rounds == ()
    await store.commit(Commit(sid, epoch, 6, [], finish="stop"))
    end = await store.read(sid, "t", 1, after=6)
    assert (end.state, end.lease_left, end.rounds) == (SessionState.DONE, 0.0, (StoredRound((), "stop", b""),))


async def test_the_turn_before_is_kept_and_those_before_it_are_not(store: RedisSessionStore, sid: str) -> None:
    for turn in (1, 2, 3):
        epoch = await begin(store, sid, f"r{turn}")
        n = (await store.read(sid, "t", turn)).prompt
        await store.commit(Commit(sid, epoch, len(n), [turn], finish="stop"))
    assert (await store.read(sid, "t", 2)).prompt == (1, 2, 3, 1, 1, 2, 3)
    with pytest.raises(SessionExpired):
        await store.read(sid, "t", 1)
    for turn in (0, 4):
        with pytest.raises(SessionNotFound):
            await store.read(sid, "t", turn)


async def test_another_tenant_gets_the_answers_of_a_session_that_never_was(store: RedisSessionStore, sid: str) -> None:
    await begin(store, sid)
    for name in (sid, "0" * 32):
        for refused in (
            store.look(name, "other"),
            store.read(name, "other", 1),
            store.cancel(name, "other", 1),
            store.delete(name, "other"),
            store.open(name, "r1", [1], b"{}", "fp", "other", create=False),
        ):
            with pytest.raises(SessionNotFound):
                await refused
    assert (await store.look(sid, "t")).n == 3


async def test_another_tenants_session_costs_the_server_the_steps_of_one_that_never_was(
    server: Server, sid: str
) -> None:
    store = RedisSessionStore.at(server.url)
    for turn in range(3):
        epoch = await begin(store, sid, f"r{turn}")
        await store.commit(Commit(sid, epoch, len((await store.read(sid, "t", turn + 1)).prompt), [9], finish="stop"))
    refusals: dict[str, Callable[[str], Awaitable[object]]] = {
        "look": lambda name: store.look(name, "other"),
        "read": lambda name: store.read(name, "other", 3),
        "cancel": lambda name: store.cancel(name, "other", 3),
        "delete": lambda name: store.delete(name, "other"),
        "open": lambda name: store.open(name, "r1", [1], b"{}", "fp", "other", create=False),
    }
    async with connect(server.url) as client:
        for what, refused in refusals.items():
            steps = []
            for name in (sid, sid, "0" * 32):  # the first time round, the script itself is loaded
                await client.config_resetstat()
                with pytest.raises(SessionNotFound):
                    await refused(name)
                found = await client.info("commandstats")
                steps.append({command: stats["calls"] for command, stats in found.items()})
            assert steps[1] == steps[2], what
    await store.close()


async def test_a_session_whose_tokens_are_gone_is_expired_to_its_own_tenant_alone(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    await begin(store, sid)
    async with connect(server.url) as client:
        await client.delete(lua.keys(sid)[1])
    for expired in (store.look(sid, "t"), store.read(sid, "t", 1), store.acquire(sid, "b")):
        with pytest.raises(SessionExpired):
            await expired
    with pytest.raises(SessionNotFound):
        await store.look(sid, "other")


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


async def test_a_session_that_lives_shorter_than_its_turn_takes_is_kept_until_the_turn_is_over(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    log = lua.keys(sid)[1]
    await store.create(sid, "t", "fp", ttl=1)
    await store.open(sid, "r1", [1, 2, 3], b"{}", "fp", "t", create=False)
    async with connect(server.url) as client:
        assert await client.ttl(log) > 10
        epoch = (await store.acquire(sid, "a")).epoch
        for key in lua.keys(sid)[:4]:
            await client.pexpire(key, 5000)
        await store.renew(sid, epoch)
        assert await client.ttl(log) > 10
        await store.commit(Commit(sid, epoch, 3, [4]))
        assert await client.ttl(log) > 10
        await store.commit(Commit(sid, epoch, 4, [5], finish="stop"))
        assert await client.pttl(log) <= 1000


async def test_a_turn_without_an_owner_is_cancelled_at_once_and_its_last_owner_fenced(
    store: RedisSessionStore, sid: str
) -> None:
    epoch = await begin(store, sid)
    await store.release(sid, epoch)
    assert await store.cancel(sid, "t", 1)
    assert (await store.read(sid, "t", 1)).rounds == (StoredRound((), "stop", b""),)
    with pytest.raises(Fenced):
        await store.commit(Commit(sid, epoch, 3, [9]))
    with pytest.raises(TurnOver):
        await store.acquire(sid, "b")


async def test_a_deleted_session_is_gone_and_its_owner_can_write_no_more(store: RedisSessionStore, sid: str) -> None:
    await store.create(sid, sid, "fp")
    await store.open(sid, "r1", [1, 2, 3], b"{}", "fp", sid)
    epoch = (await store.acquire(sid, "a")).epoch
    assert await store.named(sid, 10) == [sid]
    await store.delete(sid, sid)
    assert await store.named(sid, 10) == []
    for refused in (store.look(sid, sid), store.commit(Commit(sid, epoch, 3, [9]))):
        with pytest.raises(SessionNotFound):
            await refused


async def test_a_waiting_reader_wakes_with_the_next_round(store: RedisSessionStore, sid: str) -> None:
    epoch = await begin(store, sid)
    waiting = [asyncio.create_task(store.wait(sid, 1, 3, 60)) for _ in range(2)]
    await asyncio.sleep(0)
    await store.commit(Commit(sid, epoch, 3, [10]))
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    await store.wait(sid, 1, 4, 0.01)


async def test_new_turns_are_refused_before_the_memory_is_full_and_running_ones_go_on(server: Server, sid: str) -> None:
    store = RedisSessionStore.at(server.url)
    epoch = await begin(store, sid)
    async with connect(server.url) as client:
        used = int((await client.info("memory"))["used_memory"])
        await client.config_set("maxmemory", str(round(used / 0.9)))
        fresh = RedisSessionStore.at(server.url, StorePolicy(patience=0))
        try:
            with pytest.raises(SessionStoreFull):
                await fresh.open(uuid.uuid4().hex, "r1", [1], b"{}", "fp", "t")
            assert (await fresh.commit(Commit(sid, epoch, 3, [10]))).n == 4
        finally:
            await client.config_set("maxmemory", "0")
            await fresh.close()
            await store.close()
