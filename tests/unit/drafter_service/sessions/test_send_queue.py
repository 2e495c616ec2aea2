"""The queue for a slow verifier is bounded, and nothing is lost or reordered."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from drafter_service.sessions.connection import SendQueue
from specdec.errors import Draining


@dataclass(frozen=True)
class Parcel:
    number: int


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def _queue(limit: int = 100) -> tuple[SendQueue[Parcel], Calls]:
    calls = Calls()
    return SendQueue(limit, calls), calls


async def test_messages_come_out_in_order_and_then_it_ends() -> None:
    queue, _ = _queue()
    for number in range(3):
        queue.put(Parcel(number), 10)
    queue.close()
    assert [parcel.number async for parcel in queue] == [0, 1, 2]


async def test_an_error_comes_after_what_waits() -> None:
    queue, _ = _queue()
    queue.put(Parcel(0), 10)
    queue.close(Draining("bye"))
    taking = aiter(queue)
    assert await anext(taking) == Parcel(0)
    with pytest.raises(Draining, match="bye"):
        await anext(taking)


async def test_messages_put_on_another_thread_arrive() -> None:
    queue, _ = _queue()

    def work() -> None:
        for number in range(100):
            queue.put(Parcel(number), 1)

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[int] = []
    async for parcel in queue:
        seen.append(parcel.number)
        if len(seen) == 100:
            break
    thread.join()
    assert seen == list(range(100))


async def test_it_is_full_until_enough_is_taken_and_says_so_once() -> None:
    queue, calls = _queue(limit=25)
    for number in range(4):
        queue.put(Parcel(number), 10)
    assert queue.full
    taking = aiter(queue)
    await anext(taking)
    assert queue.full
    assert calls.count == 0
    await anext(taking)
    assert not queue.full
    await anext(taking)
    assert calls.count == 1


async def test_who_waits_for_room_waits_while_it_is_full() -> None:
    queue, _ = _queue(limit=5)
    await queue.room()
    queue.put(Parcel(0), 10)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(queue.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await anext(aiter(queue))
    await waiting
