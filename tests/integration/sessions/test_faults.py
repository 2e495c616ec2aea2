"""Lost replies, cancelled callers and killed servers: no token is lost, and none is stored twice."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator

import pytest

from gateway import tasks
from gateway.store.redis_client import connect
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from specdec.errors import Fenced, SessionStoreDown
from tests.contracts.session_store import commit, log_of
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture
async def sid(store: RedisSessionStore) -> str:
    made = uuid.uuid4().hex
    await store.open(made, "r1", [1, 2, 3], b"{}", "fp", "t")
    return made


class LossyProxy:
    """A proxy that, once `lose` is set, drops the connection in place of the next reply."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.lose = False
        self.lost = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._path)
        requests = asyncio.create_task(self._copy(reader, up_writer))
        self._tasks.add(requests)
        try:
            while data := await up_reader.read(65536):
                if self.lose:
                    self.lose, self.lost = False, self.lost + 1
                    break
                writer.write(data)
                await writer.drain()
        finally:
            requests.cancel()
            up_writer.close()
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[tuple[LossyProxy, str]]:
    password, path = server.url.removeprefix("unix://:").split("@")
    made = LossyProxy(path)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    yield made, f"redis://:{password}@{host}:{port}"
    listener.close()


async def test_a_commit_whose_reply_was_lost_is_committed_once(
    store: RedisSessionStore, proxy: tuple[LossyProxy, str], sid: str
) -> None:
    lossy, url = proxy
    through = RedisSessionStore.at(url)
    lease = await through.acquire(sid, "a")
    await commit(through, RoundCommit(sid, lease.epoch, 3, [10]))
    lossy.lose = True
    await commit(through, RoundCommit(sid, lease.epoch, 4, [11, 12]))
    await through.close()
    assert lossy.lost == 1
    assert await log_of(store, sid) == [1, 2, 3, 10, 11, 12]


async def test_a_cancelled_caller_does_not_cancel_the_write(store: RedisSessionStore, sid: str) -> None:
    lease = await store.acquire(sid, "a")
    caller = asyncio.create_task(commit(store, RoundCommit(sid, lease.epoch, 3, [10, 11])))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await store.close()
    assert await log_of(store, sid) == [1, 2, 3, 10, 11]


async def test_of_two_owners_only_the_newer_one_writes_and_no_token_is_lost(server: Server, sid: str) -> None:
    gateways = [RedisSessionStore.at(server.url) for _ in range(2)]
    counter = itertools.count(100)
    kept: list[int] = []

    async def own(name: str, store: RedisSessionStore) -> None:
        for _ in range(10):
            lease = await server.take_over(store, sid, name)
            base = lease.n
            for _ in range(5):
                token = next(counter)
                try:
                    await commit(store, RoundCommit(sid, lease.epoch, base, [token]))
                except Fenced:
                    break
                base += 1
                kept.append(token)

    await asyncio.gather(own("a", gateways[0]), own("b", gateways[1]))
    assert sorted(kept) == sorted((await log_of(gateways[0], sid))[3:])
    assert len(kept) < next(counter) - 100, "no owner was fenced: the owners never met"
    for gateway in gateways:
        await gateway.close()


async def test_a_killed_server_comes_back_with_every_committed_token(
    store: RedisSessionStore, server: Server, sid: str
) -> None:
    lease = await store.acquire(sid, "a")
    for index in range(50):
        await commit(store, RoundCommit(sid, lease.epoch, 3 + index, [index]))
    server.kill()
    try:
        with pytest.raises(SessionStoreDown):
            await store.check()
        with pytest.raises(SessionStoreDown):
            await commit(store, RoundCommit(sid, lease.epoch, 53, [99]))
    finally:
        server.start()
    assert await log_of(store, sid) == [1, 2, 3, *range(50)]
    await commit(store, RoundCommit(sid, lease.epoch, 53, [99]))
    assert await log_of(store, sid) == [1, 2, 3, *range(50), 99]


async def test_a_commit_waits_out_a_server_that_restarts(server: Server, sid: str) -> None:
    patient = RedisSessionStore.at(server.url, StorePolicy(patience=30))
    lease = await patient.acquire(sid, "a")
    server.kill()
    waiting = asyncio.create_task(commit(patient, RoundCommit(sid, lease.epoch, 3, [10])))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    server.spawn()
    await waiting
    assert await log_of(patient, sid) == [1, 2, 3, 10]
    await patient.close()


async def test_a_commit_to_a_stalled_server_times_out_and_may_be_repeated(
    server: Server, sid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ONE_TRY", 0.5)
    brief = RedisSessionStore.at(server.url, StorePolicy(patience=0.2))
    lease = await brief.acquire(sid, "a")
    written = RoundCommit(sid, lease.epoch, 3, [10])
    async with connect(server.url) as client:
        await client.client_pause(120_000, all=False)
        try:
            with pytest.raises(SessionStoreDown, match="did not answer within"):
                await commit(brief, written)
        finally:
            await client.client_unpause()
    patient = RedisSessionStore.at(server.url, StorePolicy(patience=30))
    assert await commit(patient, written) is False
    assert await log_of(patient, sid) == [1, 2, 3, 10]
    await brief.close()
    await patient.close()


async def test_a_store_that_never_was_is_down() -> None:
    nowhere = RedisSessionStore.at("unix:///nowhere/valkey.sock", StorePolicy(patience=0.1))
    with pytest.raises(SessionStoreDown):
        await nowhere.check()
    await nowhere.close()
