"""Waiting for the next of many things, or for the word that no more are wanted."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gateway.turns.interruption import until_set


async def test_all_items_come_and_their_error_too() -> None:
    async def items() -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise ValueError("after two")

    wanted = until_set(items(), asyncio.Event())
    assert [await anext(wanted), await anext(wanted)] == [1, 2]
    with pytest.raises(ValueError, match="after two"):
        await anext(wanted)


async def test_the_word_ends_what_is_waited_for() -> None:
    closed, word = [], asyncio.Event()

    async def items() -> AsyncGenerator[int]:
        try:
            yield 1
            word.set()
            await asyncio.sleep(3600)
            yield 2
        finally:
            closed.append(True)

    assert [item async for item in until_set(items(), word)] == [1]
    assert closed == [True]


async def test_whoever_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    waiting, closed = asyncio.Event(), []

    async def items() -> AsyncGenerator[int]:
        try:
            waiting.set()
            await asyncio.sleep(3600)
            yield 1
        finally:
            closed.append(True)

    before = asyncio.all_tasks()
    task = asyncio.create_task(anext(until_set(items(), asyncio.Event())))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]
    assert asyncio.all_tasks() == before
