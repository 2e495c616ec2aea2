"""A task ends even if it misses its first cancellation."""

import asyncio

import pytest

from gateway import tasks
from gateway.tasks import cancel_and_wait


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
