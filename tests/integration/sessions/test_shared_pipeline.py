"""Writes sent to the server together: each caller gets its own answer, and one caller's error affects no other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from gateway.store.redis_client import connect
from gateway.store.redis_scripts import SharedPipeline
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Redis]:
    async with connect(server.url) as connected:
        yield connected


async def test_writes_that_are_due_at_once_go_together(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    made, pipeline = list[Any](), client.pipeline

    def counted(**options: Any) -> Any:
        made.append(pipeline(**options))
        return made[-1]

    monkeypatch.setattr(client, "pipeline", counted)
    shared = SharedPipeline(client, replicas=0)
    assert await asyncio.gather(*(shared.run("INCR", f"together:{n // 2}") for n in range(4))) == [1, 2, 1, 2]
    assert len(made) == 1
    assert await shared.run("INCR", "together:0") == 3
    assert len(made) == 2


async def test_every_command_of_many_callers_in_turn_is_sent(client: Redis) -> None:
    shared = SharedPipeline(client, replicas=0)

    async def caller() -> None:
        for _ in range(200):
            await shared.run("INCR", "many")

    async with asyncio.timeout(60):
        await asyncio.gather(*(caller() for _ in range(10)))
    assert await client.get("many") == b"2000"


async def test_a_refused_write_fails_its_own_caller_alone(client: Redis) -> None:
    await client.set("word", "x")
    shared = SharedPipeline(client, replicas=0)
    first, refused, last = await asyncio.gather(
        *(shared.run("INCR", key) for key in ("alone", "word", "alone")), return_exceptions=True
    )
    assert (first, last) == (1, 2)
    assert isinstance(refused, ResponseError)


async def test_a_lost_server_fails_every_caller(client: Redis, server: Server) -> None:
    shared = SharedPipeline(client, replicas=0)
    server.kill()
    try:
        found = await asyncio.gather(*(shared.run("INCR", "lost") for _ in range(3)), return_exceptions=True)
    finally:
        server.start()
    assert [isinstance(each, RedisError | OSError) for each in found] == [True, True, True]


async def test_what_was_sent_is_waited_for_at_the_end(client: Redis) -> None:
    shared = SharedPipeline(client, replicas=0)
    caller = asyncio.create_task(shared.run("INCR", "sent"))
    await asyncio.sleep(0)
    caller.cancel()
    await shared.close()
    assert await client.get("sent") == b"1"
