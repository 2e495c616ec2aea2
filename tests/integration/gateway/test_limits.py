"""Limits of a key on a real store: all gateways share one window, and no place outlives its gateway."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from gateway.callers.caller import ApiKey
from gateway.metrics import KeyMetrics
from gateway.request import new_id
from gateway.store import limits as module
from gateway.store.limits import Limits
from gateway.store.redis_client import connect
from gateway.tasks import cancel_and_wait
from specdec.errors import RateLimited, SessionStoreDown
from tests.integration.sessions.server import Server, running_server


@pytest.fixture
async def pair(server: Server) -> AsyncIterator[list[Limits]]:
    """The limits of two gateways."""
    made = [Limits(connect(server.url), KeyMetrics(CollectorRegistry()), "t:") for _ in range(2)]
    yield made
    for each in made:
        await each.close()


def key(**limits: int) -> ApiKey:
    return ApiKey("acme", new_id(), **limits)


async def test_two_gateways_count_requests_together(pair: list[Limits]) -> None:
    acme, began = key(requests=6), time.monotonic()
    left = [(await pair[index % 2].enter(acme, new_id(), 0)).headers for index in range(6)]
    assert [each["x-ratelimit-remaining-requests"] for each in left] == ["5", "4", "3", "2", "1", "0"]
    assert left[0]["x-ratelimit-limit-requests"] == "6"
    assert float(left[-1]["x-ratelimit-reset-requests"].removesuffix("s")) == pytest.approx(
        60, abs=2 + time.monotonic() - began
    )
    for each in pair:
        with pytest.raises(RateLimited, match="requests a minute") as refused:
            await each.enter(acme, new_id(), 0)
        assert 8 - (time.monotonic() - began) < refused.value.seconds <= 10, "a sixth of a minute brings the next one"
        assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await pair[0].enter(key(requests=6), new_id(), 0)).requests == 5, "another key is another window"


async def test_a_bucket_fills_with_time(pair: list[Limits]) -> None:
    acme = key(requests=600)
    for _ in range(600):
        await pair[0].enter(acme, new_id(), 0)
    await asyncio.sleep(0.35)
    answers = await asyncio.gather(*(pair[0].enter(acme, new_id(), 0) for _ in range(400)), return_exceptions=True)
    assert 3 <= sum(not isinstance(answer, RateLimited) for answer in answers) < 300


async def test_tokens_are_taken_before_they_are_used_and_settled_afterwards(pair: list[Limits]) -> None:
    acme, first, began = key(tokens=100), new_id(), time.monotonic()
    assert (await pair[0].enter(acme, first, 80)).headers["x-ratelimit-remaining-tokens"] == "20"
    with pytest.raises(RateLimited, match="tokens a minute") as refused:
        await pair[1].enter(acme, new_id(), 50)
    assert 16 - (time.monotonic() - began) < refused.value.seconds <= 18, "30 of 100 tokens a minute"
    await pair[0].leave(acme, first, 0, 70)
    await pair[0].leave(acme, first, 0, 70)
    second = await pair[1].enter(acme, new_id(), 50)
    assert 39 <= second.tokens < 45 + 2 * (time.monotonic() - began), "what was given back was given back once"


async def test_a_request_that_used_more_than_it_took_keeps_the_next_waiting(pair: list[Limits]) -> None:
    acme, first = key(tokens=100), new_id()
    await pair[0].enter(acme, first, 0)
    await pair[0].leave(acme, first, 0, -150)
    with pytest.raises(RateLimited) as refused:
        await pair[1].enter(acme, new_id(), 10)
    assert 30 < refused.value.seconds <= 36


async def test_a_repeated_command_counts_once(pair: list[Limits]) -> None:
    acme, name = key(requests=5), new_id()
    assert {(await pair[0].enter(acme, name, 0)).headers["x-ratelimit-remaining-requests"] for _ in range(3)} == {"4"}
    await pair[0].leave(acme, name, 1, 0)
    assert (await pair[0].enter(acme, new_id(), 0)).headers["x-ratelimit-remaining-requests"] == "4"


async def is_let_in(limits: Limits, caller: ApiKey) -> bool:
    try:
        await limits.enter(caller, new_id(), 0)
    except RateLimited:
        return False
    return True


async def test_requests_are_limited_and_a_dead_gateway_s_places_are_freed(
    pair: list[Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE", 6.0)
    monkeypatch.setattr(module, "_LEASE_MS", 6000)
    acme, kept, lost = key(concurrency=2), new_id(), new_id()
    await pair[0].enter(acme, kept, 0)
    await pair[1].enter(acme, lost, 0)
    with pytest.raises(RateLimited, match="requests at once") as refused:
        await pair[0].enter(acme, new_id(), 0)
    assert refused.value.seconds > 0
    renewing = asyncio.create_task(pair[0].renew())
    async with asyncio.timeout(60):
        while not await is_let_in(pair[0], acme):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.1)
    with pytest.raises(RateLimited):
        await pair[0].enter(acme, new_id(), 0)
    await cancel_and_wait(renewing)


async def test_nobody_is_let_in_while_the_store_is_away() -> None:
    with running_server() as server:
        limits, acme, name = Limits(connect(server.url), KeyMetrics(CollectorRegistry())), key(requests=5), new_id()
        await limits.enter(acme, name, 0)
        await asyncio.to_thread(server.kill)
        with pytest.raises(SessionStoreDown):
            await limits.enter(acme, new_id(), 0)
        await limits.leave(acme, name, 0, 0)
        await limits.close()


async def test_nothing_is_left_of_a_key_that_is_not_used(pair: list[Limits], server: Server) -> None:
    acme, name = key(requests=60, tokens=1000), new_id()
    await pair[0].enter(acme, name, 500)
    await pair[0].leave(acme, name, 0, 0)
    async with connect(server.url) as client:
        keys = await client.keys(f"*{acme.id}*")
        assert keys
        assert all([0 < await client.pttl(each) <= 60_000 for each in keys])
