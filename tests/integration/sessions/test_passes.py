"""Rounds of many sessions in one call: an error of one session affects no other, and no call blocks the server long."""

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import PART, RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from specdec.errors import SessionDiverged, SessionStoreDown, SessionStoreFull, SessionStoreReadOnly
from tests.chaos.proxy import Flips, Proxy
from tests.contracts.session_store import begin, log_of
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration

WIDTH = 5
"""Number of sessions in a pass."""


async def owned(store: RedisSessionStore, count: int = WIDTH) -> dict[str, int]:
    """Open sessions of three tokens and return the epoch of each session's owner."""
    sids = [uuid.uuid4().hex for _ in range(count)]
    return {sid: await begin(store, sid) for sid in sids}


def rounds_of(epochs: dict[str, int], base: int, tokens: Sequence[int]) -> list[RoundCommit]:
    return [RoundCommit(sid, epoch, base, tokens, note=b"note") for sid, epoch in epochs.items()]


async def test_a_session_whose_keys_are_spoiled_costs_no_other(store: RedisSessionStore, server: Server) -> None:
    epochs = await owned(store)
    wrong_log, risen, sound = list(epochs)[1], list(epochs)[2], list(epochs)[3:]
    async with connect(server.url) as client:
        await client.delete(lua.keys(wrong_log)[1])
        await client.hset(lua.keys(wrong_log)[1], "no", "string")
        await client.xadd(lua.keys(risen)[2], {"t": "", "f": "", "r": ""}, id="9-0")
    for _ in range(2):
        found = await store.commit(rounds_of(epochs, 3, [4]))
        assert [isinstance(each, SessionDiverged) for each in found] == [False, True, True, False, False]
    for sid in sound:
        assert await log_of(store, sid) == [1, 2, 3, 4]


async def test_a_server_that_refuses_writes_refuses_the_whole_pass(server: Server) -> None:
    store = RedisSessionStore.at(server.url, StorePolicy(patience=0.0))
    epochs = await owned(store)
    async with connect(server.url) as client:
        await client.config_set("maxmemory", "1")
        try:
            with pytest.raises(SessionStoreFull):
                await store.commit(rounds_of(epochs, 3, [4]))
        finally:
            await client.config_set("maxmemory", "0")
        await client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(SessionStoreReadOnly):
                await store.commit(rounds_of(epochs, 3, [4]))
        finally:
            await client.replicaof("NO", "ONE")
        await client.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(SessionStoreDown, match="NOREPLICAS"):
                await store.commit(rounds_of(epochs, 3, [4]))
        finally:
            await client.config_set("min-replicas-to-write", 0)
    assert list(await store.commit(rounds_of(epochs, 3, [4]))) == [False] * WIDTH
    for sid in epochs:
        assert await log_of(store, sid) == [1, 2, 3, 4]
    await store.close()


async def test_a_large_pass_is_several_scripts(store: RedisSessionStore, server: Server) -> None:
    assert PART <= 256, "other commands wait for a script"
    ((sid, epoch),) = (await owned(store, 1)).items()
    rounds = [RoundCommit(sid, epoch, 3 + index, [index]) for index in range(2 * PART + 1)]
    assert list(await store.renew([(sid, epoch)])) == [False]  # after this, the server has cached both scripts
    await store.commit(rounds[:1])
    async with connect(server.url) as client:
        await client.config_resetstat()
        await store.commit(rounds)
        assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == 3
        await client.config_resetstat()
        await store.commit(rounds[:PART])
        await store.renew([(sid, epoch)] * PART)
        assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == 2


async def test_passes_cross_a_connection_that_changes_bytes(store: RedisSessionStore, server: Server) -> None:
    password, path = server.url.removeprefix("unix://:").split("@")
    epochs = await owned(store)
    flips = Flips(8000, seed=3)
    async with Proxy(path) as proxy, asyncio.timeout(200):
        proxy.spoil(flips)
        through = RedisSessionStore.at(f"redis://:{password}@{proxy.address}", StorePolicy(patience=60))
        for base in range(3, 103):
            assert list(await through.commit(rounds_of(epochs, base, [base + 2**20]))) == [False] * WIDTH
        await through.close()
    assert flips.count > 3
    for sid in epochs:
        assert await log_of(store, sid) == [1, 2, 3, *(base + 2**20 for base in range(3, 103))]
