"""Deployments of a session store: with TLS and ACLs, with replicas that must acknowledge, with Sentinels."""

import asyncio
import os
import shutil
import ssl
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit
from specdec.cli.local import ports, valkey
from specdec.cli.local.processes import Child, ChildCommand, Children
from specdec.errors import SessionStoreDown
from tests.contracts.session_store import commit, log_of

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
TLS = Path(__file__).parent / "tls"
"""A self-signed certificate for loopback, only for tests."""


@dataclass
class Daemon:
    """A server with settings of its own."""

    port: int
    child: Child

    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"


@dataclass
class Daemons:
    """Starts servers. They end with their folder."""

    folder: Path
    children: Children

    def start(self, *settings: str, sentinel: bool = False) -> Daemon:
        port = ports.free(HOST)
        listen = f"port {port}"
        config = self.folder / f"{port}.conf"
        lines = [f"bind {HOST}", listen, 'save ""', *settings]
        config.write_text("\n".join(lines) + f"\ndir {self.folder}\n")
        argv = (str(valkey.resolve().path), str(config), *(["--sentinel"] if sentinel else []))
        log = self.folder / f"{port}.log"
        child = self.children.start(ChildCommand(f"valkey-{port}", "redis", argv, log, ""), os.environ)
        made = Daemon(port, child)
        self.until(lambda: valkey.answers(made.url()), child)
        return made

    def until(self, condition: Callable[[], object], child: Child) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert child.exit_status is None, child.log_tail()
            assert time.monotonic() < deadline, child.log_tail()
            time.sleep(0.02)


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    folder = Path(tempfile.mkdtemp(prefix="specdec-test-"))
    try:
        with Children(grace=5) as children:
            yield Daemons(folder, children)
    finally:
        shutil.rmtree(folder)


async def works(url: str, **policy: float) -> bool:
    """Whether a round can be committed and read back through the other connection."""
    store, sid = RedisSessionStore.at(url, StorePolicy(patience=0.0, **policy)), uuid.uuid4().hex  # type: ignore[arg-type]
    try:
        await store.open(sid, "r", [1], b"{}", "fp", "t")
        epoch = (await store.acquire(sid, "a")).epoch
        await commit(store, RoundCommit(sid, epoch, 1, [2]))
        await store.wait(sid, 1, 1, 10)
        return await log_of(store, sid) == [1, 2]
    finally:
        await store.close()


@asynccontextmanager
async def behind_tls(port: int) -> AsyncIterator[int]:
    """Open a TLS port that forwards to another port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    pipes: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(HOST, port)
        back = asyncio.create_task(pipe(inner_reader, writer))
        pipes.add(back)
        await pipe(reader, inner_writer)
        await back

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, HOST, 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await asyncio.gather(*pipes, return_exceptions=True)


async def test_tls_and_an_acl_user_who_may_do_no_more_than_needed(daemons: Daemons) -> None:
    rights = "~sd:1:* +@read +@write +@scripting +@connection -@dangerous +info +wait +time"
    server = daemons.start(f"user gate on >pw {rights}")
    with redis.Redis.from_url(server.url()) as client:
        client.acl_setuser("default", reset=True)
    async with behind_tls(server.port) as port:
        good = f"rediss://gate:pw@{HOST}:{port}/0?ssl_ca_certs={TLS / 'certificate.pem'}"
        assert await works(good)
        for wrong in (
            good.replace("pw@", "no@"),
            good.partition("?")[0],
            good.partition("?")[0].replace("rediss", "redis"),
            server.url(),
        ):
            with pytest.raises(SessionStoreDown):
                await works(wrong)


async def test_a_round_counts_once_enough_replicas_have_it(daemons: Daemons) -> None:
    master = daemons.start()
    assert await works(master.url())
    with pytest.raises(SessionStoreDown, match="0 of 1 replicas"):
        await works(master.url(), replicas=1)
    replica = daemons.start(f"replicaof {HOST} {master.port}", "repl-diskless-sync-delay 0")
    with redis.Redis.from_url(replica.url()) as client:
        daemons.until(lambda: client.info("replication")["master_link_status"] == "up", replica.child)
    assert await works(master.url(), replicas=1)
    with redis.Redis.from_url(master.url()) as client:
        client.script_flush()
    assert await works(master.url(), replicas=1)


async def test_a_sentinels_master_is_found_and_found_again_after_a_failover(daemons: Daemons) -> None:
    master = daemons.start()
    replica = daemons.start(f"replicaof {HOST} {master.port}", "repl-diskless-sync-delay 0")
    with redis.Redis.from_url(replica.url()) as client:
        daemons.until(lambda: client.info("replication")["master_link_status"] == "up", replica.child)
    watch = [
        f"sentinel monitor here {HOST} {master.port} 1",
        "sentinel down-after-milliseconds here 500",
        "sentinel failover-timeout here 5000",
    ]
    sentinel = daemons.start(*watch, sentinel=True)
    url = f"redis+sentinel://{HOST}:1,{HOST}:{sentinel.port}/here"
    with redis.Redis.from_url(sentinel.url()) as client:
        daemons.until(lambda: int(client.info("sentinel")["master0"]["slaves"]) == 1, sentinel.child)
    store, sid = RedisSessionStore.at(url, StorePolicy(patience=30.0, replicas=1)), uuid.uuid4().hex
    await store.open(sid, "r", [1], b"{}", "fp", "t")
    epoch = (await store.acquire(sid, "a")).epoch
    await commit(store, RoundCommit(sid, epoch, 1, [2]))
    await store.close()
    master.child.process.kill()
    await asyncio.to_thread(master.child.process.wait)
    store = RedisSessionStore.at(url, StorePolicy(patience=30.0))
    await commit(store, RoundCommit(sid, epoch, 2, [3]))
    assert await asyncio.gather(*(log_of(store, sid) for _ in range(300))) == [[1, 2, 3]] * 300
    await store.close()
