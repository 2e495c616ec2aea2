"""A generation and its readers, which share it, hold it back, leave it, and come back."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from gateway.turns.broadcast import Broadcasts
from gateway.turns.events import Event, OutputRound
from specdec.errors import Draining, InternalError
from tests.support.gateway_fakes import until


class Source:
    """Rounds numbered from 1, up to `end` if it is set."""

    def __init__(self, end: int = 0, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = False
        self.read: list[int | None] = []
        """Positions reported for the fastest reader."""
        self.patient = False
        """Whether all readers take the rounds at the end, as reported last."""
        self._end = end
        self._error = error

    def reader_is_at(self, read: int | None, *, at_end: bool = False) -> None:
        self.read.append(read)
        self.patient = at_end

    async def run(self, publish: Callable[[Event], None]) -> None:
        try:
            while not self._end or self.made < self._end:
                await asyncio.sleep(0)
                self.made += 1
                publish(OutputRound("", (), (), 0, 0, self.made))
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


async def numbers(events: AsyncGenerator[Event], count: int = 10**6) -> list[int]:
    found: list[int] = []
    async with aclosing(events):
        async for event in events:
            assert isinstance(event, OutputRound)
            found.append(event.committed)
            if len(found) == count:
                break
    return found


async def test_every_reader_gets_every_event_in_order() -> None:
    live = Broadcasts().start("g", Source(end=5), 60)
    assert await asyncio.gather(numbers(live.read()), numbers(live.read())) == [[1, 2, 3, 4, 5]] * 2
    assert await numbers(live.read()) == [1, 2, 3, 4, 5]


async def test_the_source_is_told_how_far_its_fastest_reader_is() -> None:
    source, turns = Source(end=4), Broadcasts()
    live = turns.start("g", source, 60)
    await until(lambda: source.closed)
    fast, slow = live.read(), live.read()
    assert [(await anext(fast)), (await anext(fast)), (await anext(fast)), (await anext(slow)), (await anext(slow))]
    assert source.read == [0, 1, 2]
    await fast.aclose()
    await anext(slow)
    assert source.read == [0, 1, 2, 2]
    await slow.aclose()


async def test_the_source_is_told_that_nobody_reads() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 60)
    assert await numbers(live.read(), 2) == [1, 2]
    assert source.read == [0, 1, None]
    await turns.close()


async def test_without_readers_it_goes_on_until_the_grace_is_over() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 0.2)
    assert await numbers(live.read(), 3) == [1, 2, 3]
    assert turns.get("g") is live
    await until(lambda: source.closed)
    assert source.made > 3
    assert turns.get("g") is None


async def test_a_reader_that_comes_back_in_time_keeps_it_alive() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 1.0)
    await numbers(live.read(), 3)
    back = live.read()
    assert await anext(back) is not None
    await asyncio.sleep(1.5)
    assert not source.closed
    await back.aclose()
    await turns.close()
    assert source.closed


async def test_a_reader_that_comes_while_it_is_being_stopped_begins_it_anew() -> None:
    new, turns, stopping = Source(), Broadcasts(), asyncio.Event()

    class SlowToStop(Source):
        async def run(self, publish: Callable[[Event], None]) -> None:
            try:
                await super().run(publish)
            finally:
                stopping.set()
                await asyncio.sleep(0.05)

    await numbers(turns.start("g", SlowToStop(), 0.02).read(), 1)
    await stopping.wait()
    assert turns.join("g") is None
    second = turns.start("g", new, 60)
    reader = second.read()
    await anext(reader)
    await asyncio.sleep(0.1)
    assert turns.join("g") is second
    assert await numbers(reader, 2) == [2, 3]
    await turns.close()


async def test_a_reader_that_joins_restarts_its_grace() -> None:
    waiting, turns = asyncio.Event(), Broadcasts()

    class Slow(Source):
        async def run(self, publish: Callable[[Event], None]) -> None:
            for number in (1, 2):
                publish(OutputRound("", (), (), 0, 0, number))
                await waiting.wait()

    live = turns.start("g", Slow(), 3.0)
    await numbers(live.read(), 1)
    await asyncio.sleep(1.6)
    assert turns.join("g") is live
    await asyncio.sleep(1.6)
    waiting.set()
    assert await numbers(live.read()) == [1, 2]


async def test_without_a_grace_it_has_ended_when_its_last_reader_is_gone() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 0)
    first, second = live.read(), live.read()
    await anext(first)
    await anext(second)
    await first.aclose()
    assert not source.closed
    await second.aclose()
    assert source.closed
    assert turns.get("g") is None


async def test_an_error_comes_after_the_events_to_every_reader() -> None:
    live = Broadcasts().start("g", Source(2, InternalError("oh")), 60)
    for _ in range(2):
        reader = live.read()
        assert [await anext(reader) for _ in range(2)]
        with pytest.raises(InternalError, match="oh"):
            await anext(reader)


async def test_a_stopped_one_tells_its_readers_that_it_can_be_resumed() -> None:
    turns = Broadcasts()
    live = turns.start("g", Source(), 60)
    reader = live.read()
    await anext(reader)
    await turns.stop_unread()
    await anext(reader)
    await turns.close()
    with pytest.raises(Draining, match="resumed"):
        await numbers(reader)


async def test_a_reader_of_many_events_lets_others_run() -> None:
    live, steps = Broadcasts().start("g", Source(end=1000), 60), 0

    async def others() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    assert len(await numbers(live.read())) == 1000  # all of them exist now
    other = asyncio.create_task(others())
    assert len(await numbers(live.read())) == 1000
    other.cancel()
    assert steps >= 30


async def test_a_reader_of_the_end_gets_joined_rounds() -> None:
    live = Broadcasts().start("g", Source(end=100), 60)
    assert await numbers(live.read_at_end()) == [1, 33, 65, 97, 100]


async def test_a_reader_of_the_end_is_where_the_generation_is() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 60)
    assert await numbers(live.read(), 2) == [1, 2]
    events = live.read_at_end()
    assert await anext(events) == OutputRound("", (), (), 0, 0, 1)
    await until(lambda: source.made >= 200)
    told = source.read[3:]  # after [0, 1, None]
    assert told == [*range(told[0] or 0, source.made + 1)]  # each round, and never without a bound
    assert await numbers(live.read(), 2) == [1, 2]
    assert 1 not in source.read[3:]  # a slower reader does not hold the generation back
    await events.aclose()
    assert source.read[-1] is None
    await turns.close()


async def test_the_source_is_told_whether_all_readers_wait_for_the_end() -> None:
    source, turns = Source(), Broadcasts()
    live = turns.start("g", source, 60)
    at_end, follows = live.read_at_end(), live.read()
    await anext(at_end)
    assert source.patient
    await anext(follows)
    assert not source.patient
    await until(lambda: source.made > 10)
    assert not source.patient
    await follows.aclose()
    await until(lambda: source.patient)
    await at_end.aclose()
    assert not source.patient
    await turns.close()


async def test_a_reader_of_the_end_lets_others_run() -> None:
    live, steps = Broadcasts().start("g", Source(end=1000), 60), 0

    async def others() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    assert len(await numbers(live.read())) == 1000  # all of them exist now
    other = asyncio.create_task(others())
    assert (await numbers(live.read_at_end()))[-1] == 1000
    other.cancel()
    assert steps >= 25


async def test_a_reader_of_the_end_gets_the_error() -> None:
    live = Broadcasts().start("g", Source(end=3, error=InternalError("broken")), 60)
    events = live.read_at_end()
    assert [await anext(events), await anext(events)] == [OutputRound("", (), (), 0, 0, each) for each in (1, 3)]
    with pytest.raises(InternalError, match="broken"):
        await anext(events)
