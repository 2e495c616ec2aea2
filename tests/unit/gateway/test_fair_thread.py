"""A thread runs one piece of work at a time, alternates between callers, and refuses work beyond its capacity."""

import asyncio
import threading
from functools import partial

import pytest

from gateway.admission import FairThread, FairThreads
from gateway.callers.caller import Share
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


async def started(
    lane: FairThread, tenant: str, gate: Gate, name: str, size: int = 1, client: str = ""
) -> "asyncio.Task[str]":
    """Start work on the thread."""
    task = asyncio.create_task(lane.run(Share(client, tenant), partial(gate.work, name), size))
    await asyncio.sleep(0)
    return task


async def test_a_tenants_flood_waits_behind_anothers_single_request() -> None:
    lane, gate = FairThread("test", 100), Gate()
    flood = [await started(lane, "loud", gate, f"loud {index}") for index in range(10)]
    quiet = await started(lane, "quiet", gate, "quiet")
    gate.opened.set()
    await asyncio.gather(*flood, quiet)
    assert gate.order.index("quiet") <= 2
    assert [name for name in gate.order if name != "quiet"] == [f"loud {index}" for index in range(10)]


async def test_an_address_has_half_of_the_queue_and_a_user_half_of_that() -> None:
    lane, gate = FairThread("test", 10), Gate()
    taken = [await started(lane, "loud", gate, "loud", client="1") for _ in range(3)]  # one runs, two wait
    with pytest.raises(QueueFull):
        await lane.run(Share("1", "loud"), partial(gate.work, "too much"))
    taken += [await started(lane, tenant, gate, tenant, client="1") for tenant in "abc"]
    with pytest.raises(QueueFull):
        await lane.run(Share("1", "made up"), partial(gate.work, "too much"))
    taken += [await started(lane, tenant, gate, tenant, client="2") for tenant in "abcde"]
    with pytest.raises(QueueFull):
        await lane.run(Share("3", "f"), partial(gate.work, "too much"))
    gate.opened.set()
    assert len(await asyncio.gather(*taken)) == 11


async def test_work_larger_than_the_queue_waits_where_nothing_else_does() -> None:
    lane, gate = FairThread("test", 1000), Gate()
    taken = [await started(lane, "a", gate, "runs"), await started(lane, "a", gate, "waits", size=5000)]
    with pytest.raises(QueueFull):
        await lane.run(Share("", "b"), partial(gate.work, "too much"))
    gate.opened.set()
    assert await asyncio.gather(*taken) == ["runs", "waits"]


async def test_a_caller_that_leaves_frees_its_place_but_not_the_thread_it_has() -> None:
    lane, gate = FairThread("test", 2), Gate()
    runs, waits = await started(lane, "a", gate, "runs"), await started(lane, "a", gate, "waits")
    runs.cancel()
    waits.cancel()
    await asyncio.gather(runs, waits, return_exceptions=True)
    later = await started(lane, "a", gate, "later")
    gate.opened.set()
    assert await later == "later"
    assert gate.order == ["runs", "later"]
    assert await lane.run(Share("", "a"), partial(gate.work, "next")) == "next"


async def test_a_failure_is_its_callers_and_frees_the_thread() -> None:
    lane = FairThread("test", 1000)
    with pytest.raises(ZeroDivisionError):
        await lane.run(Share("a"), lambda: 1 // 0)
    assert await lane.run(Share("a"), lambda: 1) == 1


async def test_short_work_does_not_wait_for_long_work() -> None:
    threads, gate = FairThreads("test", 100, 10), Gate()
    long = asyncio.create_task(threads.run(Share("a"), partial(gate.work, "long"), 11))
    await asyncio.sleep(0)
    assert await threads.run(Share("a"), lambda: "short", 10) == "short"
    gate.opened.set()
    assert await long == "long"
