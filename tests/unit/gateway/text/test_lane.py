"""A lane runs one piece of work at a time, alternates between tenants, and refuses work beyond its capacity."""

import asyncio
import threading
from functools import partial

import pytest

from gateway.callers.caller import called_from
from gateway.text.prompt_encoder import LEAST_SIZE, TokenizingLane
from specdec.errors import QueueFull


class Gate:
    """Work that ends when the test opens the gate, and records its order."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.order: list[str] = []

    def work(self, name: str) -> str:
        self.opened.wait(10)
        self.order.append(name)
        return name


async def started(lane: TokenizingLane, tenant: str, gate: Gate, name: str, size: int = 1) -> "asyncio.Task[str]":
    """Start work in the lane."""
    task = asyncio.create_task(lane.run(tenant, size, partial(gate.work, name)))
    await asyncio.sleep(0)
    return task


async def test_a_tenants_flood_waits_behind_anothers_single_request() -> None:
    lane, gate = TokenizingLane("test", 100 * LEAST_SIZE), Gate()
    flood = [await started(lane, "loud", gate, f"loud {index}") for index in range(10)]
    quiet = await started(lane, "quiet", gate, "quiet")
    gate.opened.set()
    await asyncio.gather(*flood, quiet)
    assert gate.order.index("quiet") <= 2
    assert [name for name in gate.order if name != "quiet"] == [f"loud {index}" for index in range(10)]


async def test_an_address_has_half_of_the_queue_and_a_user_half_of_that() -> None:
    lane, gate = TokenizingLane("test", 10 * LEAST_SIZE), Gate()
    called_from("192.0.2.1")
    taken = [await started(lane, "loud", gate, "loud") for _ in range(3)]  # one runs, two wait
    with pytest.raises(QueueFull):
        await lane.run("loud", 1, partial(gate.work, "too much"))
    taken += [await started(lane, tenant, gate, tenant) for tenant in "abc"]
    with pytest.raises(QueueFull):
        await lane.run("made up", 1, partial(gate.work, "too much"))
    called_from("192.0.2.2")
    taken += [await started(lane, tenant, gate, tenant) for tenant in "abcde"]
    called_from("192.0.2.3")
    with pytest.raises(QueueFull):
        await lane.run("f", 1, partial(gate.work, "too much"))
    gate.opened.set()
    assert len(await asyncio.gather(*taken)) == 11


async def test_work_larger_than_the_queue_waits_where_nothing_else_does() -> None:
    lane, gate = TokenizingLane("test", 1000), Gate()
    taken = [await started(lane, "a", gate, "runs"), await started(lane, "a", gate, "waits", size=5000)]
    with pytest.raises(QueueFull):
        await lane.run("b", 1, partial(gate.work, "too much"))
    gate.opened.set()
    assert await asyncio.gather(*taken) == ["runs", "waits"]


async def test_a_caller_that_leaves_frees_its_place_but_not_the_thread_it_has() -> None:
    lane, gate = TokenizingLane("test", 2 * LEAST_SIZE), Gate()
    runs, waits = await started(lane, "a", gate, "runs"), await started(lane, "a", gate, "waits")
    runs.cancel()
    waits.cancel()
    await asyncio.gather(runs, waits, return_exceptions=True)
    later = await started(lane, "a", gate, "later")
    gate.opened.set()
    assert await later == "later"
    assert gate.order == ["runs", "later"]
    assert await lane.run("a", 1, partial(gate.work, "next")) == "next"


async def test_a_failure_is_its_callers_and_frees_the_thread() -> None:
    lane = TokenizingLane("test", 1000)
    with pytest.raises(ZeroDivisionError):
        await lane.run("a", 1, lambda: 1 // 0)
    assert await lane.run("a", 1, lambda: 1) == 1
