"""Tenants take turns for places. A single tenant leaves some places free, and the queue for them is bounded."""

import asyncio

import pytest

from gateway.admission import FairQueue
from gateway.callers.caller import Share
from specdec.errors import QueueFull


class Door:
    """A queue, and the order in which tasks entered it."""

    def __init__(self, places: int, capacity: int = 100) -> None:
        self.queue = FairQueue("things", places, capacity)
        self.entered: list[Share | str] = []

    async def come(self, tenant: Share | str, places: int = 1) -> "asyncio.Task[None]":
        """Start a task that enters as soon as it may."""

        async def enter() -> None:
            await self.queue.enter(tenant, places)
            self.entered.append(tenant)

        task = asyncio.create_task(enter())
        await asyncio.sleep(0)
        return task

    async def leave(self, tenant: Share | str, places: int = 1) -> None:
        self.queue.leave(tenant, places)
        await asyncio.sleep(0)


async def test_a_tenant_alone_gets_seven_in_eight_and_another_finds_room_at_once() -> None:
    door = Door(places=16)
    waiting = [await door.come("loud") for _ in range(30)]
    assert door.entered == ["loud"] * 14
    await door.come("quiet")
    assert door.entered[14:] == ["quiet"]
    for task in waiting:
        task.cancel()


async def test_places_that_become_free_go_to_tenants_in_turn() -> None:
    door = Door(places=4)
    tasks = [await door.come(tenant) for tenant in ("a", "b", "c", "d", "a", "a", "a", "b", "c")]
    assert door.entered == ["a", "b", "c", "d"]
    for tenant in ("d", "c", "b", "a"):
        await door.leave(tenant)
    assert door.entered[4:] == ["a", "b", "c", "a"]
    tasks[6].cancel()


async def test_the_tenant_that_holds_most_waits_while_others_do() -> None:
    door = Door(places=8)
    tasks = [await door.come("loud") for _ in range(10)]
    tasks += [await door.come("quiet"), await door.come("quiet")]
    assert door.entered == ["loud"] * 7 + ["quiet"]
    await door.leave("loud")
    assert door.entered[8:] == ["loud"], "it was served longest ago, and has fewer than its share"
    await door.leave("quiet")
    assert door.entered[9:] == ["quiet"]
    for task in tasks:
        task.cancel()


async def test_who_needs_many_places_is_not_overtaken_for_ever() -> None:
    door = Door(places=4)
    await door.come("a", 3)
    wide = await door.come("b", 3)
    narrow = await door.come("c")
    assert door.entered == ["a"]
    await door.leave("a", 3)
    assert door.entered == ["a", "b", "c"]
    await asyncio.gather(wide, narrow)


async def test_what_may_not_be_refused_takes_a_place_that_is_not_there() -> None:
    door = Door(places=1)
    door.queue.take("a")
    door.queue.take("b")
    task = await door.come("c")
    await door.leave("a")
    assert door.entered == []
    await door.leave("b")
    assert door.entered == ["c"]
    await task


async def test_the_queue_is_bounded_and_a_tenant_has_half_of_it() -> None:
    door = Door(places=1, capacity=4)
    tasks = [await door.come("a") for _ in range(3)]
    with pytest.raises(QueueFull, match="of this user"):
        await door.queue.enter("a")
    tasks += [await door.come("b"), await door.come("c")]
    with pytest.raises(QueueFull, match="too many things are waiting"):
        await door.queue.enter("d")
    for tenant in ("a", "a", "b", "c", "a"):
        await door.leave(tenant)
    await asyncio.gather(*tasks)


async def test_a_request_that_leaves_the_queue_frees_its_room_and_wakes_others() -> None:
    door = Door(places=2)
    await door.come("a")
    wide, narrow = await door.come("b", 2), await door.come("c")
    assert door.entered == ["a"]
    wide.cancel()
    await asyncio.gather(wide, return_exceptions=True)
    assert door.entered == ["a", "c"]
    given = await door.come("d")
    door.queue.leave("a")
    given.cancel()  # it has a place already but does not know it
    await asyncio.gather(given, return_exceptions=True)
    await asyncio.gather(narrow, await door.come("e"))
    assert door.entered == ["a", "c", "e"]


async def test_a_client_with_users_gets_three_in_four_and_so_does_each_user() -> None:
    door, loud, quiet = Door(places=64), Share("a", "loud"), Share("a", "quiet")
    waiting = [await door.come(loud) for _ in range(40)]
    assert len(door.entered) == 36, "3 in 4 of 48, which are 3 in 4 of 64"
    waiting += [await door.come(quiet) for _ in range(12)]
    assert 1 < door.entered.count(quiet) < 12
    waiting += [await door.come(Share("b", "another")) for _ in range(4)]
    assert door.entered.count(Share("b", "another")) == 4
    for task in waiting:
        task.cancel()


async def test_users_that_a_client_makes_up_get_no_more_turns() -> None:
    door = Door(places=1)
    tasks = [await door.come("first")]
    tasks += [await door.come(Share("a", str(user))) for user in range(5)]
    tasks += [await door.come(Share("b", "only")) for _ in range(2)]
    for share in ("first", Share("a", "0"), Share("b", "only"), Share("a", "1"), Share("b", "only"), Share("a", "2")):
        await door.leave(share)
    assert door.entered[1:5] == [Share("a", "0"), Share("b", "only"), Share("a", "1"), Share("b", "only")]
    for task in tasks:
        task.cancel()


async def test_all_users_of_a_client_have_half_of_the_queue() -> None:
    door = Door(places=1, capacity=8)
    tasks = [await door.come("first"), *[await door.come(Share("a", str(user % 2))) for user in range(4)]]
    with pytest.raises(QueueFull, match="of this user"):
        await door.queue.enter(Share("a", "0"))
    with pytest.raises(QueueFull, match="of this user"):
        await door.queue.enter(Share("a", "made up"))
    tasks.append(await door.come(Share("b", "0")))
    for task in tasks:
        task.cancel()
