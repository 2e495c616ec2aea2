"""The session store under test, on the server of the test module."""

from collections.abc import AsyncIterator

import pytest

from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from tests.integration.sessions.server import Server


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisSessionStore]:
    made = RedisSessionStore.at(server.url, StorePolicy(patience=0.5, max_tokens=1000))
    yield made
    await made.close()
