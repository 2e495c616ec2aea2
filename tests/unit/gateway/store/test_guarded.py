"""Every operation of the session store ends in time, however often its client tries again."""

import asyncio

import pytest

from gateway.store import redis_scripts
from gateway.store.redis_scripts import guarded
from specdec.errors import SessionStoreDown


async def test_an_operation_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_scripts, "LONGEST", 0.01)
    async with asyncio.timeout(20):
        with pytest.raises(SessionStoreDown):
            await guarded(asyncio.Event().wait())


async def test_an_answer_is_returned() -> None:
    assert await guarded(asyncio.sleep(0, "answer")) == "answer"
