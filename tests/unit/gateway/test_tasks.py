"""A task ends even if it misses its first cancellation, and several tasks share a result."""

import asyncio

import pytest

from gateway import tasks
from gateway.tasks import Shared, cancel_and_wait


async def test_a_task_that_lost_its_cancellation_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = 0

    async def deaf() -> None:
        nonlocal missed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                missed += 1
                if missed > 2:
                    raise

    monkeypatch.setattr(tasks, "CANCEL_AGAIN", 0.01)
    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert task.cancelled()
    assert missed == 3


async def test_a_task_that_has_ended_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    await cancel_and_wait(task)
    assert not task.cancelled()


async def test_a_shared_result_is_computed_once_and_its_error_is_raised_to_all() -> None:
    begun = 0

    async def work() -> int:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.01)
        return begun

    shared, broken = Shared[int](), Shared[int]()
    first = asyncio.create_task(shared.get(work))
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(shared.get(work), shared.get(work)) == [1, 1]

    async def fails() -> int:
        raise ValueError

    found = await asyncio.gather(broken.get(fails), broken.get(fails), return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, ValueError]
