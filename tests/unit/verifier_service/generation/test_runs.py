"""The highest epoch has a session, and of equal ones the latest."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from specdec.errors import Draining, Fenced, InternalError
from specdec.wire.generation import Round
from verifier_service.generation.runs import Run, Runs


def a_round(base_len: int) -> Round:
    return Round(base_len=base_len, tokens=(1,))


class Source:
    """Yields `count` rounds, then fails or waits for ever when told to."""

    def __init__(self, count: int, error: Exception | None = None, hangs: bool = False) -> None:
        self.count = count
        self.error = error
        self.hangs = hangs
        self.made = 0
        self.open = False

    async def run(self) -> AsyncGenerator[Round, None]:
        self.open = True
        try:
            for index in range(self.count):
                self.made += 1
                yield a_round(index)
            if self.error:
                raise self.error
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.open = False


async def lengths(run: Run) -> list[int]:
    return [done.base_len async for done in run.rounds()]


async def test_every_round_arrives_in_order() -> None:
    assert await lengths(Runs().start("s", 1, Source(5).run())) == [0, 1, 2, 3, 4]


async def test_an_error_arrives_after_the_rounds_before_it() -> None:
    stream = Runs().start("s", 1, Source(2, error=InternalError("broken")).run()).rounds()
    assert [(await anext(stream)).base_len for _ in range(2)] == [0, 1]
    with pytest.raises(InternalError, match="broken"):
        await anext(stream)


async def test_a_slow_reader_holds_its_session_back() -> None:
    source = Source(100)
    stream = Runs().start("s", 1, source.run()).rounds()
    await anext(stream)
    for _ in range(50):
        await asyncio.sleep(0)
    assert source.made <= 4
    await stream.aclose()


async def test_leaving_early_ends_the_session() -> None:
    source = Source(1, hangs=True)
    stream = Runs().start("s", 1, source.run()).rounds()
    await anext(stream)
    await stream.aclose()
    assert not source.open


async def test_an_older_epoch_is_fenced() -> None:
    runs = Runs()
    await lengths(runs.start("s", 5, Source(1).run()))
    with pytest.raises(Fenced):
        runs.start("s", 4, Source(1).run())
    assert await lengths(runs.start("other", 1, Source(1).run())) == [0]


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_newer_or_repeated_epoch_ends_the_run_before_it(epoch: int) -> None:
    runs = Runs()
    older = Source(1, hangs=True)
    stream = runs.start("s", 1, older.run()).rounds()
    await anext(stream)
    newer = runs.start("s", epoch, Source(2).run())
    with pytest.raises(Fenced):
        await anext(stream)
    assert not older.open
    assert await lengths(newer) == [0, 1]


async def test_a_finished_run_is_not_fenced_after_the_fact() -> None:
    runs = Runs()
    first = runs.start("s", 1, Source(1).run())
    await asyncio.wait([first.task])
    await lengths(runs.start("s", 2, Source(1).run()))
    assert await lengths(first) == [0]


async def test_only_so_many_epochs_are_remembered() -> None:
    runs = Runs(remembered=2)
    for name in ("a", "b", "c"):
        await lengths(runs.start(name, 5, Source(1).run()))
    assert await lengths(runs.start("a", 1, Source(1).run())) == [0]
    with pytest.raises(Fenced):
        runs.start("c", 1, Source(1).run())


async def test_draining_waits_for_what_runs() -> None:
    runs = Runs()
    reading = asyncio.create_task(lengths(runs.start("s", 1, Source(5).run())))
    assert await runs.drain(3600) == 0
    assert await reading == [0, 1, 2, 3, 4]


async def test_what_does_not_end_in_time_is_ended_after_the_rounds_there_are() -> None:
    runs, source = Runs(), Source(2, hangs=True)
    stream = runs.start("s", 1, source.run()).rounds()
    first = await anext(stream)
    assert await runs.drain(0.01) == 1
    assert [first.base_len, (await anext(stream)).base_len] == [0, 1]
    with pytest.raises(Draining):
        await anext(stream)
    assert not source.open


async def test_nothing_to_drain_is_no_wait() -> None:
    assert await Runs().drain(3600) == 0


async def test_an_epoch_far_in_the_future_soon_keeps_nobody_out() -> None:
    now = 1_800_000_000.0
    runs = Runs(clock=lambda: now)
    assert await lengths(runs.start("s", 2**63, Source(1).run())) == [0]
    later = round((now + 61) * 1e6)
    assert await lengths(runs.start("s", later, Source(1).run())) == [0]
    with pytest.raises(Fenced):
        runs.start("s", round(now * 1e6), Source(1).run())


async def test_epochs_of_a_store_whose_clock_is_ahead_are_served_and_the_latest_caller_wins() -> None:
    runs = Runs(clock=lambda: 1_800_000_000.0)
    ahead = round((1_800_000_000.0 + 3600) * 1e6)
    older, newer = Source(9, hangs=True), Source(1)
    first = runs.start("s", ahead, older.run())
    assert await lengths(runs.start("s", ahead + 1, newer.run())) == [0]
    with pytest.raises(Fenced):
        await lengths(first)


async def test_a_run_without_rounds_shows_that_it_goes_on() -> None:
    stream = Runs().start("s", 1, Source(2, hangs=True).run()).rounds(heartbeat=0.01)
    shown = [await anext(stream) for _ in range(5)]
    assert [done and done.base_len for done in shown] == [0, 1, None, None, None]
    await stream.aclose()
