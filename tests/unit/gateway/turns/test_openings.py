"""Turns are opened a few at a time, callers in rotation, and within the patience with the session store."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from gateway import tasks
from gateway.callers.caller import tenant_of
from gateway.store.values import Opened
from gateway.turns import generation
from gateway.turns.call import make_call
from gateway.turns.services import OPENINGS
from specdec.errors import SessionStoreDown
from tests.support.memory_sessions import MemorySessionStore
from tests.unit.gateway.turns.generation_stage import Stage, text_of


class SlowStore(MemorySessionStore):
    """A store that opens a turn for each release of `room`."""

    def __init__(self) -> None:
        super().__init__()
        self.opening: list[str] = []
        """Tenants of the turns that were sent to be opened."""
        self.room = asyncio.Semaphore(0)

    async def open(self, *args: Any, **options: Any) -> Opened:
        tenant = args[5]
        self.opening.append(tenant)
        await self.room.acquire()
        return await super().open(*args, **options)


async def test_choices_of_one_caller_do_not_delay_the_opening_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    store, prepared = SlowStore(), Mock(side_effect=make_call)
    monkeypatch.setattr(generation, "make_call", prepared)
    stage = Stage(store=store)
    crowd = [asyncio.create_task(stage.run(user="crowd", n=16)) for _ in range(8)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert OPENINGS // 2 <= len(store.opening) < OPENINGS
    assert prepared.call_count == len(store.opening)
    one = asyncio.create_task(stage.run(user="one"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.opening[-1] == tenant_of("one")
    for _ in range(8 * 16 + 1):
        store.room.release()
    assert text_of(await one)
    assert all(map(text_of, await asyncio.gather(*crowd)))


async def test_an_opening_and_its_wait_end_with_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ONE_TRY", 0.1)
    stage = Stage(store=SlowStore())
    waiting = [stage.run(user="crowd", n=16) for _ in range(4)]
    async with asyncio.timeout(30):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ended] == [SessionStoreDown] * 4
