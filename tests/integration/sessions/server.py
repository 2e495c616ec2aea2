"""A pytest plugin: a real server for the session store, which a test can kill and restart on the same folder.

`SPECDEC_TEST_REDIS=/path/to/redis-server` selects the server. By default the tests use the one that `specdec up` would
start.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease
from specdec.cli.local import valkey
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.valkey import Binary
from specdec.errors import SessionHeld


def binary() -> Binary:
    """Path of the server under test."""
    given = os.environ.get("SPECDEC_TEST_REDIS")
    if not given:
        return valkey.resolve()
    version = valkey.version_of(Path(given))
    assert version, f"{given} does not run"
    return Binary(Path(given), version, "SPECDEC_TEST_REDIS")


class Server:
    """The server that `specdec up` would embed. Call `spawn` from the main thread only."""

    def __init__(self, folder: Path, children: Children) -> None:
        self._children = children
        self._embedded = valkey.embed(binary(), folder)
        self._log = folder / "valkey.log"
        self.url = self._embedded.url
        self.start()

    def spawn(self) -> None:
        self._child = self._children.start(
            ChildCommand("valkey", "redis", self._embedded.argv, self._log, ""), os.environ
        )

    def start(self) -> None:
        self.spawn()
        deadline = time.monotonic() + 30
        while not valkey.answers(self.url):
            assert self._child.exit_status is None, self._child.log_tail()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def kill(self) -> None:
        self._child.process.kill()
        self._child.process.wait()

    async def expire_lease(self, session_id: str) -> None:
        """End the lease of the session's owner now. A commit or renewal by that owner does not restore it."""
        async with connect(self.url) as client:
            await client.hset(lua.keys(session_id)[0], mapping={"own": "", "lu": "1"})

    async def lose_tokens(self, session_id: str) -> None:
        """Delete a session's token log, as its expiry does."""
        async with connect(self.url) as client:
            await client.delete(lua.keys(session_id)[1])

    async def take_over(self, store: SessionStore, session_id: str, owner: str) -> Lease:
        """Make `owner` the session's owner, as if the previous owner's lease had ended."""
        while True:
            await self.expire_lease(session_id)
            with suppress(SessionHeld):  # another owner acquired it in between
                return await store.acquire(session_id, owner)


@contextmanager
def running_server() -> Iterator[Server]:
    """Run a server in a private folder with a path short enough for a socket file."""
    folder = Path(tempfile.mkdtemp(prefix="specdec-test-"))
    try:
        with Children(grace=5) as children:
            yield Server(folder, children)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for a test module."""
    with running_server() as running:
        yield running
