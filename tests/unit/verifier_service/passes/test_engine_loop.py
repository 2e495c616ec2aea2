"""Rows go to the one thread in batches; KV is first come, first served."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from tests.support.gateway_fakes import until
from tests.unit.verifier_service.passes.scheduling import admitted, awaited_loop, row, scheduling, steps
from tests.unit.verifier_service.verifier_fakes import (
    TableEngine,
    following,
    make_row,
    point_mass,
)
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_step import ModelStep, TargetLost
from verifier_service.backends.model_thread import SteppedModel


async def test_rows_submitted_together_share_a_pass() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, AsyncExitStack() as stack:
        for name in "abc":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        outcomes = await asyncio.gather(*(scheduler.verify(row(name)) for name in "abc"))
    assert [outcome.verdict.tokens for outcome in outcomes] == [(following(3),)] * 3
    assert [len(batch) for batch in engine.batches] == [3]


async def test_a_sequence_that_is_let_in_takes_part_in_the_next_pass() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1):
        await asyncio.gather(scheduler.verify(row("a")), scheduler.begin(make_row("b", (3,), 0), row("b")))
    assert [len(batch) for batch in engine.batches] == [2]


async def test_sessions_take_turns_where_a_pass_has_no_room_for_all() -> None:
    engine = TableEngine()

    async def decode(name: str) -> None:
        async with admitted(scheduler, name, 1):
            for _ in range(4):
                await scheduler.verify(row(name))
                engine.truncate(name, 0)

    async with scheduling(engine, step_sessions=2) as scheduler, asyncio.timeout(60):
        await asyncio.gather(*map(decode, "abc"))
    assert max(map(len, engine.batches)) == 2
    assert "c" in {chunk.session for chunk in engine.batches[1]}
    assert Counter(chunk.session for batch in engine.batches for chunk in batch) == dict.fromkeys("abc", 4)


async def test_a_pass_judges_no_more_drafts_than_it_may_and_says_how_many() -> None:
    engine = TableEngine()
    draft = point_mass(following(3), following(following(3)))
    async with scheduling(engine, draft_tokens=3) as scheduler, AsyncExitStack() as stack:
        for name in "abc":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        rows = [replace(row(name), draft=draft) for name in "abc"]
        outcomes = await asyncio.gather(*map(scheduler.verify, rows))
    assert [(each.offered, each.verdict.drafted, each.verdict.accepted) for each in outcomes] == [(1, 1, 1)] * 3
    assert [sum(len(chunk.tokens) for chunk in batch) for batch in engine.batches] == [6]


async def test_kv_is_given_in_order_and_when_there_is_room() -> None:
    engine = TableEngine(room=10)
    entered: list[str] = []

    async def hold(name: str, capacity: int, leave: asyncio.Event) -> None:
        async with admitted(scheduler, name, capacity):
            entered.append(name)
            await leave.wait()

    async with scheduling(engine) as scheduler:
        leave = {name: asyncio.Event() for name in "abc"}
        tasks = [asyncio.create_task(hold(*each)) for each in (("a", 6, leave["a"]), ("b", 6, leave["b"]))]
        await until(lambda: entered)
        # It would fit beside the first, but the second arrived earlier.
        tasks.append(asyncio.create_task(hold("c", 2, leave["c"])))
        await steps()
        assert entered == ["a"]
        leave["a"].set()
        await until(lambda: len(entered) == 3)
        assert entered == ["a", "b", "c"]
        leave["b"].set()
        leave["c"].set()
        await asyncio.gather(*tasks)
        await until(lambda: engine.held == {})


async def test_a_session_that_stops_waiting_does_not_block_the_others() -> None:
    engine = TableEngine(room=10)
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 6):
        waiting = asyncio.create_task(admitted(scheduler, "b", 10).__aenter__())
        await steps()
        waiting.cancel()
        async with asyncio.timeout(60), admitted(scheduler, "c", 4):
            assert set(engine.held) == {"a", "c"}


async def test_a_limit_that_can_never_be_had_is_refused_at_once() -> None:
    async with scheduling(TableEngine(room=10)) as scheduler:
        with pytest.raises(ContextLengthExceeded):
            async with admitted(scheduler, "a", 1, limit=11):
                pass


async def test_too_many_waiting_are_refused() -> None:
    async with scheduling(TableEngine(room=10), max_waiting=1) as scheduler, admitted(scheduler, "a", 10):
        waiting = asyncio.create_task(admitted(scheduler, "b", 10).__aenter__())
        await steps()
        with pytest.raises(QueueFull):
            async with admitted(scheduler, "c", 1):
                pass
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_failed_pass_fails_its_row_and_the_thread_lives_on() -> None:
    engine = TableEngine()
    engine.poisoned.add("bad")
    async with scheduling(engine) as scheduler, admitted(scheduler, "bad", 1), admitted(scheduler, "good", 1):
        bad, good = await asyncio.gather(
            scheduler.verify(row("bad")), scheduler.verify(row("good")), return_exceptions=True
        )
        assert isinstance(bad, InternalError)
        assert not isinstance(good, BaseException)
        await scheduler.prefill(make_row("good", (3, 1, 2, 4), 3))
        assert engine.length("good") == 3


async def test_the_row_of_a_sequence_that_has_left_is_not_run() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler:
        async with admitted(scheduler, "a", 10):
            scheduler.verify(row("a"))
        await steps()
    assert engine.batches == []


async def test_an_admission_that_fails_in_the_engine_fails_alone() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 10):
        engine.inadmissible.add("b")
        with pytest.raises(InternalError):
            async with admitted(scheduler, "b", 1):
                pass
        async with admitted(scheduler, "c", 1):
            assert (await scheduler.verify(row("c"))).verdict.drafted == 0


class LostModel(SteppedModel):
    """A target that cannot continue."""

    drafts_first = True

    def can_ever_admit(self, limit: int) -> bool:
        return True

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        raise TargetLost("it is gone")


async def test_a_lost_target_ends_its_generations_and_the_loop() -> None:
    with ThreadPoolExecutor(1) as thread:
        scheduler = awaited_loop(LostModel(), thread)
        running = asyncio.create_task(scheduler.engine_loop.run())
        with pytest.raises(InternalError, match="the model failed"):
            async with scheduler.admitted(make_row("s", (3,), goal=0)):
                pass
        with pytest.raises(TargetLost):
            await running
