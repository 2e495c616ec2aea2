"""A call whose events are not read ends and releases its resources; a slowly read one continues."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.rpc import unread
from gateway.rpc.unread import read_in_time

pytestmark = pytest.mark.asyncio


async def events(closed: asyncio.Event) -> AsyncIterator[int]:
    try:
        for each in range(3):
            with read_in_time():
                yield each
    finally:
        closed.set()


async def test_an_event_that_nobody_takes_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_SECONDS", 0.01)
    closed = asyncio.Event()

    async def call() -> None:
        async for _ in events(closed):
            await asyncio.Event().wait()  # the connection's flow-control window is full and stays full

    task = asyncio.create_task(call())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_is_read_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()
    assert [each async for each in events(closed)] == [0, 1, 2]
    monkeypatch.setattr(unread, "UNREAD_SECONDS", 0.0)
    await asyncio.sleep(0.01)
    assert closed.is_set()
