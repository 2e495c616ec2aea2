"""Gateways of this release and of the previous one share sessions. `before/` has the previous release's scripts."""

import struct
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.store import lua
from gateway.store.checked_scripts import arguments_of, checked
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore
from gateway.store.values import RoundCommit
from specdec.errors import Fenced, SessionHeld
from specdec.wire.tokens import tokens_to_bytes
from tests.contracts.session_store import commit, log_of, renew
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration

BEFORE = Path(__file__).with_name("before")
LEASE_MS = 10_000
OK = [b"OK", b""]


@dataclass(frozen=True)
class GatewayBefore:
    """Runs the scripts of the previous release."""

    client: Redis
    sid: str

    async def run(self, name: str, *arguments: str | bytes | float) -> list[Any]:
        """Return the reply of a script."""
        keys = (*lua.keys(self.sid), lua.LEASES)
        source = checked((BEFORE / f"{name}.lua").read_text())
        reply: Any = await self.client.eval(source, len(keys), *keys, *arguments_of(keys, arguments))
        return list(reply[1])

    async def open(self, request: str, tokens: Sequence[int]) -> list[Any]:
        what = (request, "", tokens_to_bytes(tokens), b"{}", "fp", "t", 3_600_000, 4000, "", 1, LEASE_MS)
        return await self.run("open", *what)

    async def acquire(self, owner: str) -> list[Any]:
        return await self.run("acquire", owner, LEASE_MS, "")

    async def commit(self, epoch: int, base: int, tokens: Sequence[int], finish: str = "") -> list[Any]:
        return await self.run("commit", epoch, base, tokens_to_bytes(tokens), finish, LEASE_MS, b"")

    async def read(self, turn: int) -> list[int]:
        """Return the turn's prompt and output."""
        word, _, _, prompt, entries = await self.run("read", "t", turn, "")
        assert word == b"OK"
        data = prompt + b"".join(fields[1] for _, fields in entries if fields[0] == b"t")
        return list(struct.unpack(f"<{len(data) // 4}i", data))


@pytest.fixture
async def before(server: Server) -> AsyncIterator[GatewayBefore]:
    async with connect(server.url) as client:
        yield GatewayBefore(client, uuid.uuid4().hex)


async def test_a_session_passes_from_one_release_to_the_other_and_back(
    store: RedisSessionStore, server: Server, before: GatewayBefore
) -> None:
    sid, tokens = before.sid, [1, 2, 3]
    assert await before.open("r1", tokens) == [b"OK", b"1"]
    for _ in range(2):
        _, old, n = await before.acquire("before")
        assert int(n) == len(tokens)
        for _ in range(2):
            assert await before.commit(int(old), len(tokens), [7]) == OK
            tokens.append(7)
        with pytest.raises(SessionHeld):
            await store.acquire(sid, "now")
        await server.expire_lease(sid)
        lease = await store.acquire(sid, "now")
        assert lease.n == len(tokens)
        for _ in range(2):
            assert await commit(store, RoundCommit(sid, lease.epoch, len(tokens), [8])) is False
            tokens.append(8)
        assert await before.commit(int(old), len(tokens), [9]) == [b"FENCED"]
        assert (await before.acquire("before"))[0] == b"HELD"
        assert await before.read(1) == tokens
        await server.expire_lease(sid)
        assert (await before.acquire("before"))[0] == b"OK"
        with pytest.raises(Fenced):
            await commit(store, RoundCommit(sid, lease.epoch, len(tokens), [9]))
        with pytest.raises(Fenced):
            await renew(store, sid, lease.epoch)
        await server.expire_lease(sid)
    assert await log_of(store, sid) == tokens == await before.read(1)


async def test_either_release_goes_on_with_a_turn_and_a_session_of_the_other(
    store: RedisSessionStore, before: GatewayBefore
) -> None:
    sid = before.sid
    await store.open(sid, "r1", [1, 2], b"{}", "fp", "t")
    epoch = (await store.acquire(sid, "now")).epoch
    await commit(store, RoundCommit(sid, epoch, 2, [3], finish="stop"))
    assert await before.open("r2", [4]) == [b"OK", b"2"]
    _, old, _ = await before.acquire("before")
    assert await before.commit(int(old), 4, [5], "stop") == OK
    assert (await store.open(sid, "r2", [4], b"{}", "fp", "t")).repeated
    assert (await store.open(sid, "r3", [6], b"{}", "fp", "t")).turn == 3
    assert await store.release(sid, (await store.acquire(sid, "now")).epoch)
    assert (await before.acquire("before"))[0] == b"OK"
    assert await before.read(3) == await log_of(store, sid) == [1, 2, 3, 4, 5, 6]


async def test_a_cancellation_reaches_an_owner_of_the_other_release(
    store: RedisSessionStore, server: Server, before: GatewayBefore
) -> None:
    sid = before.sid
    await before.open("r1", [1])
    _, old, _ = await before.acquire("before")
    assert await store.cancel(sid, "t", 1)
    assert await before.client.xrange(lua.keys(sid)[4]), "the owner waits for this entry"
    assert await before.run("renew", int(old), LEASE_MS) == [b"OK", b"1"]
    await server.expire_lease(sid)
    await before.run("cancel", "t", 1)  # the turn has no owner
    await before.open("r2", [2])
    epoch = (await store.acquire(sid, "now")).epoch
    assert await before.run("cancel", "t", 2) == [b"OK"]
    assert await renew(store, sid, epoch), "within a third of the lease"
    assert await commit(store, RoundCommit(sid, epoch, 2, [3]))


async def test_keys_outlive_two_leases_whichever_release_wrote_last(
    store: RedisSessionStore, before: GatewayBefore
) -> None:
    sid, keys = before.sid, lua.keys(before.sid)[:4]

    async def left() -> float:
        return min([await before.client.pttl(key) for key in keys])

    await store.create(sid, "t", "fp", ttl=1)
    await before.open("r1", [1])
    epoch = (await store.acquire(sid, "now")).epoch
    for key in keys:
        await before.client.pexpire(key, 2 * LEASE_MS)  # as the previous release sets them
    assert await store.release(sid, epoch)
    epoch = (await store.acquire(sid, "now")).epoch
    await commit(store, RoundCommit(sid, epoch, 1, [2]))
    assert await left() > 2 * LEASE_MS
    assert await store.release(sid, epoch)
    _, old, _ = await before.acquire("before")
    assert await before.commit(int(old), 2, [3]) == OK
    assert await left() > 2 * LEASE_MS - 1000
