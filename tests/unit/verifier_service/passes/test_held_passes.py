"""The announced rows for which a pass waits, and the division of sessions into two groups."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from specdec.rules.draft import NO_DRAFT
from tests.unit.verifier_service.passes.scheduling import admitted, row, scheduling, steps
from tests.unit.verifier_service.verifier_fakes import TableEngine, following, make_row, point_mass
from verifier_service.backends.batch_plan import Gathers, Outcome, Row
from verifier_service.speculation.costs import PassSample


async def test_a_pass_waits_for_a_row_that_is_announced() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1), admitted(scheduler, "b", 1):
        first = make_row("a", (1, 2, 3, 4))
        with scheduler.expected(Gathers.ALWAYS):
            task = scheduler.verify(first)
            await steps()
            assert not task.done()
        await task


@pytest.mark.parametrize("groups", [1, 2])
async def test_rows_of_a_fixed_length_are_waited_for_while_that_is_cheaper(groups: int) -> None:
    engine = TableEngine()
    async with scheduling(engine, groups=groups) as scheduler, AsyncExitStack() as stack:
        for name in "abcd":
            await stack.enter_async_context(admitted(scheduler, name, 1))
        await scheduler.verify(row("a"))
        scheduler.engine_loop._pass_seconds = 1e9
        with scheduler.expected(Gathers.BRIEFLY):
            task = scheduler.verify(make_row("a", (3, 3), draft=point_mass(following(3))))
            await steps()
            assert not task.done()
            scheduler.engine_loop._pass_seconds = 0.0
            scheduler.engine_loop._wake.set()
            await task


async def test_a_row_without_a_draft_does_not_wait_for_those_of_a_fixed_length() -> None:
    async with scheduling(TableEngine()) as scheduler, admitted(scheduler, "a", 1), admitted(scheduler, "b", 1):
        scheduler.engine_loop._pass_seconds = 1e9
        with scheduler.expected(Gathers.BRIEFLY):
            await scheduler.verify(row("a"))
            async with admitted(scheduler, "c", 1):
                pass


async def test_a_round_without_a_wait_joins_the_pass_that_others_wait_for() -> None:
    engine, drafted = TableEngine(), asyncio.Event()

    def written() -> Row:
        return make_row("b", (3, 3), draft=point_mass(following(3)) if drafted.is_set() else NO_DRAFT)

    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1), admitted(scheduler, "b", 1):
        await asyncio.gather(scheduler.verify(row("a")), scheduler.verify(row("b")))
        with scheduler.expected(Gathers.ALWAYS):
            task = scheduler.lingering(written)
            await steps()
            drafted.set()
        outcome, _ = await asyncio.gather(task, scheduler.verify(make_row("a", (3, 3))))
    assert outcome.offered == 1
    assert [len(batch) for batch in engine.batches] == [2, 2]


async def test_rounds_for_which_no_pass_waits_wait_for_nobody() -> None:
    async with scheduling(TableEngine()) as scheduler, admitted(scheduler, "a", 1), admitted(scheduler, "b", 1):
        await scheduler.verify(row("a"))
        scheduler.engine_loop._pass_seconds = 1e9
        with scheduler.expected(Gathers.BRIEFLY):
            assert (await scheduler.lingering(lambda: make_row("a", (3, 3)))).offered == 0


async def test_a_prompt_does_not_wait_for_announced_rows() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 3):
        with scheduler.expected(Gathers.ALWAYS):
            assert (await scheduler.verify(make_row("a", (1, 2, 3)))).verdict.tokens == (following(3),)


@pytest.mark.parametrize(
    ("chunk", "passes"), [(16, [(True, 2, 4, 2, 0)]), (3, [(True, 0, 3, 2, 2), (True, 2, 1, 1, 0)])]
)
async def test_a_pass_over_prompts_counts_as_a_round_of_sessions_that_wait(
    chunk: int, passes: list[tuple[bool, int, int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = list[PassSample]()
    async with scheduling(TableEngine(), chunk_tokens=chunk) as scheduler, AsyncExitStack() as stack:
        for name in "abc":
            await stack.enter_async_context(admitted(scheduler, name, 3))
        await scheduler.verify(row("a"))
        monkeypatch.setattr(scheduler.engine_loop._speculation, "passed", samples.append)
        with scheduler.expected(Gathers.ALWAYS):
            await asyncio.gather(*(scheduler.verify(make_row(name, (1, 2, 3))) for name in "bc"))
    assert [(each.follows, each.rows, each.prompt, each.reading, each.left) for each in samples] == passes


async def test_two_announced_rows_share_a_pass() -> None:
    engine = TableEngine()
    async with scheduling(engine) as scheduler, admitted(scheduler, "a", 1), admitted(scheduler, "b", 1):

        async def expected(name: str, pause: float) -> None:
            with scheduler.expected(Gathers.ALWAYS):
                await asyncio.sleep(pause)
            await scheduler.verify(make_row(name, (1, 2, 3, 4)))

        await asyncio.gather(expected("a", 0.0), expected("b", 0.02))
    assert len(engine.batches[-1]) == 2


async def _in_groups(engine: TableEngine, groups: int, plain: int = 0) -> list[Outcome]:
    """Return the outcomes of six simultaneous rows, all but `plain` of which have a draft."""
    names = "abcdef"
    async with scheduling(engine, groups=groups) as scheduler, AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(admitted(scheduler, name, 1))
        await asyncio.gather(*(scheduler.verify(row(name)) for name in names))
        drafts = [NO_DRAFT] * plain + [point_mass(following(3))] * (len(names) - plain)
        rows = [make_row(name, (3, 3), draft=draft) for name, draft in zip(names, drafts, strict=True)]
        return await asyncio.gather(*map(scheduler.verify, rows))


@pytest.mark.parametrize(("groups", "plain", "passes"), [(1, 0, [6, 6]), (2, 0, [6, 3, 3]), (2, 2, [6, 4, 2])])
async def test_of_two_groups_one_goes_first_and_rows_without_drafts_with_it(
    groups: int, plain: int, passes: list[int]
) -> None:
    engine = TableEngine()
    await _in_groups(engine, groups, plain)
    assert [len(batch) for batch in engine.batches] == passes


async def test_groups_change_no_verdict() -> None:
    one, two = [await _in_groups(TableEngine(), groups) for groups in (1, 2)]
    assert [each.verdict for each in one] == [each.verdict for each in two]


async def test_of_two_groups_a_pass_waits_for_half_of_the_announced_rows() -> None:
    engine, leave = TableEngine(), asyncio.Event()
    async with scheduling(engine, groups=2) as scheduler, AsyncExitStack() as stack:
        names = "abcd"
        for name in names:
            await stack.enter_async_context(admitted(scheduler, name, 1))
        await asyncio.gather(*(scheduler.verify(row(name)) for name in names))

        async def expected(name: str, came: asyncio.Event) -> None:
            with scheduler.expected(Gathers.ALWAYS):
                await came.wait()
            await scheduler.verify(make_row(name, (3, 3), draft=point_mass(following(3))))

        now = asyncio.Event()
        first = [asyncio.create_task(expected(name, now)) for name in "ab"]
        second = [asyncio.create_task(expected(name, leave)) for name in "cd"]
        await steps()
        assert len(engine.batches) == 1
        now.set()
        await asyncio.gather(*first)
        assert [len(batch) for batch in engine.batches] == [4, 2]
        leave.set()
        await asyncio.gather(*second)
    assert [len(batch) for batch in engine.batches] == [4, 2, 2]
