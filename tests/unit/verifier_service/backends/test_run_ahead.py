"""Passes of plain rounds follow one another before their sessions request them, at most one round ahead."""

import asyncio
import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.errors import InternalError
from specdec.serving.settings import ModelSettings
from tests.support.gateway_fakes import until
from tests.unit.verifier_service.passes.scheduling import AwaitedLoop, admitted, awaited_loop, scheduling, steps
from tests.unit.verifier_service.verifier_fakes import (
    TableEngine,
    continuation,
    make_row,
    point_mass,
)
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_step import ModelStep, TargetLost
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings

SETTINGS = VerifierSettings(model=ModelSettings(path=Path("model")))


def plain(name: str, tokens: Sequence[int] = (3,), limit: int = 1000, **changes: object) -> Row:
    return replace(make_row(name, tokens, limit=limit, **changes), runs_ahead=True)


async def decode(scheduler: AwaitedLoop, name: str, count: int) -> tuple[int, ...]:
    """Decode like a session."""
    tokens = [3]
    for _ in range(count):
        tokens += (await scheduler.verify(plain(name, tuple(tokens)))).verdict.tokens
    return tuple(tokens[1:])


async def test_the_next_pass_begins_unasked_and_no_later_one_does() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1):
        await scheduler.verify(plain("a"))
        await until(lambda: len(engine.batches) == 2)
        await steps()
        assert len(engine.batches) == 2
        assert scheduler.engine_loop.runs_ahead_of("a")


async def test_the_tokens_are_those_of_one_pass_after_the_other() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, AsyncExitStack() as stack:
        for name in "ab":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        made = await asyncio.gather(*(decode(scheduler, name, 5) for name in "ab"))
    assert made == [continuation(3, 5)] * 2
    assert [sorted(chunk.session for chunk in batch) for batch in engine.batches] == [["a", "b"]] * len(engine.batches)


async def test_no_pass_goes_beyond_the_limit() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1):
        await scheduler.verify(plain("a", limit=2))
        await steps()
    assert len(engine.batches) == 1


@pytest.mark.parametrize(("stopped", "passes"), [(True, 1), (False, 2)])
async def test_nothing_follows_where_something_else_has_come(stopped: bool, passes: int) -> None:
    engine = TableEngine()
    model = ModelThread(engine, SETTINGS)
    model.step((), [make_row("a", (3,), 0)])
    if stopped:
        model.flags.stop()
    model.run((), [plain("a")], lambda _, __: None)
    assert len(engine.batches) == passes


async def test_no_pass_goes_beyond_a_stop_id() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1):
        await scheduler.verify(plain("a", stop_token_ids=continuation(3, 1)))
        await steps()
    assert len(engine.batches) == 1


@pytest.mark.parametrize("other", [make_row("b", (3,)), replace(plain("b"), draft=point_mass(*continuation(3, 2)))])
async def test_a_batch_in_which_one_has_a_say_goes_back_to_the_loop(other: Row) -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, AsyncExitStack() as stack:
        for name in "ab":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        await asyncio.gather(scheduler.verify(plain("a")), scheduler.verify(other))
        await steps()
        assert len(engine.batches) == 1
        assert not scheduler.engine_loop.runs_ahead_of("a")


async def test_a_session_that_asks_for_drafts_is_not_run_ahead_of_again() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1):
        await scheduler.verify(plain("a"))
        drafting = replace(plain("a", (3, *continuation(3, 1))), runs_ahead=False)
        assert (await scheduler.verify(drafting)).verdict.tokens == continuation(3, 2)[1:]
        await steps()
        assert len(engine.batches) == 2
        assert not scheduler.engine_loop.runs_ahead_of("a")


async def test_who_comes_takes_part_in_the_next_pass() -> None:
    engine = TableEngine(room=100_000)
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1, limit=50_000):
        first = asyncio.create_task(scheduler.decode(plain("a", limit=50_000), 40_000))
        await until(lambda: len(engine.batches) > 1)
        async with admitted(scheduler, "b", 1):
            assert await scheduler.decode(plain("b"), 5) == continuation(3, 5)
            assert not first.done()
            scheduler.sequences["a"]._then = lambda _: None
            made = await first
    assert made == continuation(3, len(made))
    assert {"a", "b"} in [{chunk.session for chunk in batch} for batch in engine.batches]


async def test_a_session_that_leaves_takes_nothing_from_the_others() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "b", 1):
        async with admitted(scheduler, "a", 1):
            await asyncio.gather(scheduler.verify(plain("a")), scheduler.verify(plain("b")))
        await until(lambda: set(engine.held) == {"b"})
        assert not scheduler.engine_loop.runs_ahead_of("a")
        rest = [(await scheduler.verify(plain("b", (3, *continuation(3, count))))).verdict.tokens for count in (1, 2)]
        assert rest == [continuation(3, 2)[1:], continuation(3, 3)[2:]]


class FailingModel(ModelThread):
    """Fails in its third step, the first that no session has requested."""

    def __init__(self, engine: TableEngine, error: Exception) -> None:
        super().__init__(engine, SETTINGS)
        self.left = 2
        self.error = error

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        if not self.left:
            raise self.error
        self.left -= 1
        return super().step(ended, rows)


@pytest.mark.parametrize("error", [TargetLost("it is gone"), RuntimeError("a bug")])
async def test_a_step_that_fails_unasked_fails_those_who_ask_then(error: Exception) -> None:
    with ThreadPoolExecutor(1) as thread:
        scheduler = awaited_loop(FailingModel(TableEngine(), error), thread)
        running = asyncio.create_task(scheduler.engine_loop.run())
        async with asyncio.timeout(60), scheduler.admitted(make_row("a", (3,), 0, limit=10)):
            assert await decode(scheduler, "a", 1) == continuation(3, 1)
            with pytest.raises(InternalError, match="the model failed"):
                await scheduler.verify(plain("a", (3, *continuation(3, 1))))
        if isinstance(error, TargetLost):
            with pytest.raises(TargetLost):
                await running
        running.cancel()
        await asyncio.wait([running])


async def test_an_error_that_nobody_asks_for_is_not_logged_as_lost() -> None:
    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    with ThreadPoolExecutor(1) as thread:
        model = FailingModel(TableEngine(), RuntimeError("a bug"))
        scheduler = awaited_loop(model, thread)
        running = asyncio.create_task(scheduler.engine_loop.run())
        async with scheduler.admitted(make_row("a", (3,), 0, limit=10)):
            assert await decode(scheduler, "a", 1) == continuation(3, 1)
            await until(lambda: scheduler.engine_loop.runs_ahead_of("a"))
            await steps()
        running.cancel()
        await asyncio.wait([running])
    gc.collect()
    assert lost == []
