"""Turns with an expired lease are found; renewed, released and finished turns are not."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from gateway.store import lua
from gateway.store.pins import Pins
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from specdec.errors import SessionBusy, SpecdecError
from tests.contracts.session_store import commit, log_of, renew
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration
LIMIT = 1000


@pytest.fixture
async def brief(server: Server) -> AsyncIterator[RedisSessionStore]:
    """A store whose leases expire within a test."""
    async with connect(server.url) as client:
        await client.flushdb()
    made = RedisSessionStore.at(server.url, StorePolicy(lease=0.02))
    yield made
    await made.close()


async def owned(store: RedisSessionStore, owner: str = "a") -> tuple[str, int]:
    """Open a session and return its id and the epoch of its owner."""
    session_id = uuid.uuid4().hex
    await store.open(session_id, "r", [1, 2], b"{}", "fp", "ann")
    return session_id, (await store.acquire(session_id, owner)).epoch


async def found(store: RedisSessionStore) -> list[str]:
    return [lapsed.session_id for lapsed in await store.lapsed_turns(LIMIT)]


async def test_a_turn_whose_lease_ran_out_is_found_with_whose_it_is(brief: RedisSessionStore) -> None:
    session_id, _ = await owned(brief)
    await asyncio.sleep(0.05)
    (lapsed,) = await brief.lapsed_turns(LIMIT)
    assert (lapsed.session_id, lapsed.tenant, lapsed.turn) == (session_id, "ann", 1)
    assert 0.0 <= lapsed.silent < 60.0


async def test_a_turn_that_was_opened_and_never_acquired_is_found(brief: RedisSessionStore) -> None:
    session_id = uuid.uuid4().hex
    await brief.open(session_id, "r", [1, 2], b"{}", "fp", "ann")
    await asyncio.sleep(0.05)
    assert await found(brief) == [session_id]


async def test_those_that_were_silent_longest_are_found_first(brief: RedisSessionStore) -> None:
    sessions = []
    for _ in range(3):
        sessions.append((await owned(brief))[0])
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert [lapsed.session_id for lapsed in await brief.lapsed_turns(2)] == sessions[:2]


async def test_who_was_told_of_it_has_it_to_himself_for_a_lease(server: Server, brief: RedisSessionStore) -> None:
    session_id, _ = await owned(brief)
    await asyncio.sleep(0.05)
    patient = RedisSessionStore.at(server.url, StorePolicy(lease=60.0))
    assert await found(patient) == [session_id]
    assert await found(patient) == []
    await patient.close()


async def test_after_that_lease_it_is_found_again(brief: RedisSessionStore) -> None:
    session_id, _ = await owned(brief)
    for _ in range(2):
        await asyncio.sleep(0.05)
        assert await found(brief) == [session_id]


async def test_paused_ended_and_deleted_turns_are_in_no_index(server: Server, brief: RedisSessionStore) -> None:
    paused, ended, deleted = [await owned(brief) for _ in range(3)]
    await brief.release(*paused)
    await commit(brief, RoundCommit(*ended, 2, (3,), finish="stop"))
    await brief.delete(deleted[0], "ann")
    await asyncio.sleep(0.05)
    assert await found(brief) == []
    async with connect(server.url) as client:
        assert await client.zcard(lua.LEASES) == 0


async def test_a_hint_that_came_late_finds_nothing(server: Server, brief: RedisSessionStore) -> None:
    patient = RedisSessionStore.at(server.url, StorePolicy(lease=60.0))
    session_id, epoch = await owned(brief)
    await asyncio.sleep(0.05)
    await renew(patient, session_id, epoch)
    async with connect(server.url) as client:
        assert await client.zadd(lua.LEASES, {session_id: 0}, xx=True, ch=True) == 1
    assert await found(patient) == []
    with pytest.raises(SessionBusy):
        await patient.acquire(session_id, "b")
    await patient.close()


async def test_deployments_of_different_prefixes_share_a_server_and_no_session(server: Server) -> None:
    async with connect(server.url) as client:
        await client.flushdb()
        ours, theirs = (
            RedisSessionStore.at(server.url, StorePolicy(lease=0.02, prefix=name)) for name in ("a/x:", "b/x:")
        )
        pins = [Pins(client, 60.0, name) for name in ("a/x:", "b/x:")]
        session_id, _ = await owned(ours)
        await ours.create("listed", "ann", "fp")
        assert await pins[0].settle(session_id, 1, "v1", ["v1", "v2"]) == "v1"
        assert await pins[1].settle(session_id, 1, "v2", ["v1", "v2"]) == "v2"
        await asyncio.sleep(0.05)
        assert (await found(theirs), await found(ours)) == ([], [session_id])
        assert (await theirs.list_ids("ann", 9), await ours.list_ids("ann", 9)) == ([], ["listed"])
        with pytest.raises(SpecdecError):
            await theirs.get(session_id, "ann")
        assert await log_of(ours, session_id, "ann") == [1, 2]
        keys = [key.decode() for key in await client.keys()]
        assert {key[:4] for key in keys} == {"a/x:", "b/x:"}
        await ours.close()
        await theirs.close()
