"""Requests begin a few at a time, and addresses take turns."""

import asyncio
from functools import partial

from gateway.http.connection import AT_ONCE, ArrivingRequests


def begun_by(begun: list[str], name: str) -> bool:
    begun.append(name)
    return True


async def test_a_few_requests_begin_in_one_iteration_of_the_loop() -> None:
    arrivals, begun = ArrivingRequests(), list[str]()
    for each in range(3 * AT_ONCE + 1):
        arrivals.add("a", partial(begun_by, begun, f"{each:02}"))
    counts = []
    for _ in range(5):
        counts.append(len(begun))
        await asyncio.sleep(0)
    assert counts == [0, AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, 3 * AT_ONCE + 1]
    assert begun == sorted(begun)


async def test_addresses_take_turns() -> None:
    arrivals, begun = ArrivingRequests(), list[str]()
    for each in range(100):
        arrivals.add("a", partial(begun_by, begun, f"a{each}"))
    arrivals.add("b", partial(begun_by, begun, "b0"))
    await asyncio.sleep(0)
    assert begun == ["a0", "b0", "a1", "a2"]


async def test_a_request_that_does_not_begin_delays_no_other() -> None:
    arrivals, begun = ArrivingRequests(), list[str]()

    def later(name: str) -> bool:
        arrivals.add("later", partial(begun_by, begun, name))
        return False

    for each in range(100):
        arrivals.add("a", partial(later, f"late {each}"))
    arrivals.add("a", partial(begun_by, begun, "last"))
    await asyncio.sleep(0)
    assert begun == ["last", "late 0", "late 1", "late 2"]
