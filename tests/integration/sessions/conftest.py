"""A real server of the kind `specdec up` starts, in a private folder, one for a test module."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from specdec.cli.processes import Children
from tests.integration.sessions.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="specdec-test-"))
    try:
        with Children(grace=5) as children:
            yield Server(folder, children)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisSessionStore]:
    made = RedisSessionStore.at(server.url, StorePolicy(patience=0.5, max_tokens=1000))
    yield made
    await made.close()
