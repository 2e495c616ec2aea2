"""A session returns to the verifier that served it last, as recorded by the newest owner."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.store.pins import Pins
from gateway.store.redis_client import connect
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration
ALL = ("a", "b", "c")


@pytest.fixture
async def pins(server: Server) -> AsyncIterator[Pins]:
    made = Pins(connect(server.url), ttl=60.0)
    yield made
    await made.close()


async def test_the_first_choice_is_kept(pins: Pins) -> None:
    assert await pins.settle("kept", 1, "a", ALL) == "a"
    assert await pins.settle("kept", 2, "b", ALL) == "a"


async def test_one_that_may_not_serve_is_replaced(pins: Pins) -> None:
    await pins.settle("moved", 1, "a", ALL)
    assert await pins.settle("moved", 2, "b", ("b", "c")) == "b"
    assert await pins.settle("moved", 3, "c", ALL) == "b"


async def test_an_older_owner_changes_nothing(pins: Pins) -> None:
    await pins.settle("fenced", 5, "a", ALL)
    assert await pins.settle("fenced", 4, "b", ("b", "c")) == "a"
    assert await pins.settle("fenced", 6, "c", ALL) == "a"


async def test_the_only_verifier_is_remembered_and_nobody_waits_for_that(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(server.url)
    pins, may = Pins(client, ttl=60.0), asyncio.Event()
    run = pins._pipeline.run

    async def late(*command: str | bytes | int) -> Any:
        await may.wait()
        return await run(*command)

    monkeypatch.setattr(pins._pipeline, "run", late)
    assert await pins.settle("alone", 1, "a", ("a",)) == "a"
    may.set()
    await pins.close()
    later = Pins(connect(server.url), ttl=60.0)
    assert await later.settle("alone", 2, "b", ALL) == "a"
    await later.close()


async def test_a_pin_is_forgotten_in_time(server: Server) -> None:
    client = connect(server.url)
    pins = Pins(client, ttl=60.0)
    await pins.settle("brief", 1, "a", ALL)
    (key,) = await client.keys("*brief*")
    assert 0 < await client.ttl(key) <= 60
    await pins.close()


async def test_without_the_store_the_choice_holds() -> None:
    pins = Pins(connect("redis://127.0.0.1:1/0"), ttl=60.0)
    assert await pins.settle("s", 1, "b", ALL) == "b"
    await pins.close()
