"""What waits for a slow verifier is bounded, and nothing is lost or reordered."""

import asyncio
import threading
from dataclasses import dataclass

import pytest

from drafter_service.sessions.outbox import Outbox
from specdec.errors import Draining


@dataclass(frozen=True)
class Parcel:
    number: int
    size: int = 10

    def ByteSize(self) -> int:
        return self.size


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def _outbox(limit: int = 100) -> tuple[Outbox[Parcel], Calls]:
    calls = Calls()
    return Outbox(limit, calls), calls


async def test_messages_come_out_in_order_and_then_it_ends() -> None:
    outbox, _ = _outbox()
    for number in range(3):
        outbox.put(Parcel(number))
    outbox.close()
    assert [parcel.number async for parcel in outbox] == [0, 1, 2]


async def test_an_error_comes_after_what_waits() -> None:
    outbox, _ = _outbox()
    outbox.put(Parcel(0))
    outbox.close(Draining("bye"))
    taking = aiter(outbox)
    assert await anext(taking) == Parcel(0)
    with pytest.raises(Draining, match="bye"):
        await anext(taking)


async def test_messages_put_on_another_thread_arrive() -> None:
    outbox, _ = _outbox()

    def work() -> None:
        for number in range(100):
            outbox.put(Parcel(number, 1))

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[int] = []
    async for parcel in outbox:
        seen.append(parcel.number)
        if len(seen) == 100:
            break
    thread.join()
    assert seen == list(range(100))


async def test_it_is_full_until_enough_is_taken_and_says_so_once() -> None:
    outbox, calls = _outbox(limit=25)
    for number in range(4):
        outbox.put(Parcel(number))
    assert outbox.full
    taking = aiter(outbox)
    await anext(taking)
    assert outbox.full
    assert calls.count == 0
    await anext(taking)
    assert not outbox.full
    await anext(taking)
    assert calls.count == 1


async def test_who_waits_for_room_waits_while_it_is_full() -> None:
    outbox, _ = _outbox(limit=5)
    await outbox.room()
    outbox.put(Parcel(0))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await anext(aiter(outbox))
    await waiting
