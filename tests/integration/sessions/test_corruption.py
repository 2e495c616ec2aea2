"""Bytes corrupted on the way to the server or back: no wrong data is stored or read."""

import asyncio
import random
import struct
import uuid

import pytest

from gateway.store import lua
from gateway.store.checked_scripts import arguments_of, checked, digest_of
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from gateway.tasks import retry
from tests.chaos.proxy import Flips, Proxy
from tests.contracts.session_store import commit, log_of
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration

ROUNDS, WIDTH = 130, 8
EVERY = 4000
"""One in this many bytes is changed, which disturbs about one round of six."""


@pytest.fixture
async def sid(store: RedisSessionStore) -> str:
    made = uuid.uuid4().hex
    await store.open(made, "r1", [1, 2, 3], b"{}", "fp", "t")
    return made


async def test_a_script_does_nothing_when_it_gets_other_bytes_than_were_sent(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    lease = await store.acquire(sid, "a")
    keys = (lua.meta_key(sid), lua.LEASES)
    packed = struct.pack("<dIIiBI", lease.epoch, 3, 4, 7, 0, 4) + b"note"
    sent = arguments_of(keys, (60_000, packed))
    script = checked(lua.script("sessions/commit"))
    async with connect(server.url) as client:
        for place, argument in enumerate(sent):
            changed = [*sent[:place], b"x" + argument[1:], *sent[place + 1 :]]
            assert await client.eval(script, len(keys), *keys, *changed) == [b"", [b"GARBLED"]]
        assert await log_of(store, sid) == [1, 2, 3]
        reply = [b"OK", b"OK "]
        assert await client.eval(script, len(keys), *keys, *sent) == [digest_of(sent[-1], reply), reply]
    assert await log_of(store, sid) == [1, 2, 3, 7]


async def test_a_thousand_tokens_pass_a_connection_that_changes_bytes(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    password, path = server.url.removeprefix("unix://:").split("@")
    tokens = [random.Random(7).randrange(2**31) for _ in range(ROUNDS * WIDTH)]
    flips = Flips(EVERY, seed=7)
    async with Proxy(path) as proxy, asyncio.timeout(200):
        proxy.spoil(flips)
        through = RedisSessionStore.at(f"redis://:{password}@{proxy.address}", StorePolicy(patience=60))
        lease = await retry(lambda: through.acquire(sid, "a"), 60)
        for start in range(0, len(tokens), WIDTH):
            await commit(through, RoundCommit(sid, lease.epoch, 3 + start, tokens[start : start + WIDTH], note=b"note"))
        view = await retry(lambda: through.read(sid, "t", 1), 60)
        await through.close()
    assert flips.count > 5
    assert await log_of(store, sid) == [1, 2, 3, *tokens]
    assert [token for stored in view.rounds for token in stored.tokens] == tokens
