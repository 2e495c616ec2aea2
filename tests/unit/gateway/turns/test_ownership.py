"""A session is owned while its turn is generated: renewed, notified of a cancel, and released unless the turn ended."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

import pytest

from gateway import tasks
from gateway.store.values import RoundCommit
from gateway.turns.turn_runner import OwnedSession, release
from specdec.errors import Fenced, SessionHeld, SessionStoreDown
from tests.support.gateway_fakes import until
from tests.support.memory_sessions import MemorySessionStore
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, header, open_turn, services


async def owned(store: MemorySessionStore, owner: str = "me", lease: float = 60.0) -> OwnedSession:
    if not store.sessions:
        await open_turn(store, header())
    return OwnedSession(services(owner=owner, lease=lease, store=store), TURN)


async def test_every_acquisition_has_a_higher_epoch_and_fences_the_one_before() -> None:
    store = MemorySessionStore()
    session = await owned(store)
    epochs = [(await session.acquire()).epoch for _ in range(2)]
    assert epochs == [1, 2]
    assert session.epoch == 2
    with pytest.raises(Fenced):
        await session.commit(RoundCommit(TURN.session_id, 1, len(PROMPT), (65,)))


async def test_another_owner_is_kept_out() -> None:
    store = MemorySessionStore()
    await (await owned(store)).acquire()
    with pytest.raises(SessionHeld):
        await (await owned(store, "another")).acquire()


async def test_a_turn_that_has_not_ended_is_released_and_one_that_has_is_not() -> None:
    store = MemorySessionStore()
    session = await owned(store)
    async with session.kept(lambda: None):
        await session.acquire()
    assert store.journal[-1] == "release"
    async with session.kept(lambda: None):
        await session.acquire()
        await session.commit(RoundCommit(TURN.session_id, session.epoch, len(PROMPT), (65,), finish="stop"))
        session.done = True
    assert store.journal[-1] == "commit"


async def test_the_lease_is_renewed_also_after_the_store_was_away() -> None:
    store = MemorySessionStore()
    session = await owned(store, lease=0.03)
    async with session.kept(lambda: None):
        await session.acquire()
        store.down = True
        await until(lambda: store.refused.count("renew") > 1)
        store.down = False
        await until(lambda: "renew" in store.journal)


async def test_a_cancel_is_heard_at_once_and_by_the_next_renewal_at_the_latest() -> None:
    for lease, at_once in ((60.0, True), (0.03, False)):
        store = MemorySessionStore()
        session = await owned(store, lease=lease)
        async with session.kept(lambda: None), asyncio.timeout(20):
            await session.acquire()
            assert not session.cancelled
            if at_once:
                await store.cancel(TURN.session_id, TURN.tenant, TURN.number)
            else:
                store.only.cancelled = True
            await until(partial(getattr, session, "cancelled"))


async def test_a_release_that_fails_is_left_to_the_lease() -> None:
    store = MemorySessionStore()
    session = await owned(store)
    await session.acquire()
    store.down = True
    with pytest.raises(SessionStoreDown):
        await store.release(TURN.session_id, session.epoch)
    await release(store, TURN.session_id, session.epoch)
    assert store.only.owner == "me"


class Stubborn(MemorySessionStore):
    """A store whose reader of cancellations loses its own first cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    async def cancellations(self, owner: str) -> AsyncGenerator[tuple[str, int]]:
        self.heard.append("begin")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        self.heard.append("lost")
        try:
            await asyncio.Event().wait()
        finally:
            self.heard.append("end")
        yield "", 0


async def test_a_turn_ends_without_waiting_for_the_reader_of_cancellations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN", 3600.0)
    store = Stubborn()
    session = await owned(store, lease=0.03)
    async with asyncio.timeout(20):
        async with session.kept(lambda: None):
            await session.acquire()
        await until(lambda: store.heard == ["begin", "lost"])  # it is stopped some time after the last turn
        async with session.kept(lambda: None):
            await until(lambda: store.heard == ["begin", "lost", "begin"])
            monkeypatch.setattr(tasks, "CANCEL_AGAIN", 0.01)
    await until(lambda: store.heard.count("lost") == 2)


async def test_turns_one_after_another_share_a_reader() -> None:
    store = Stubborn()
    session = await owned(store)
    for _ in range(3):
        async with session.kept(lambda: None):
            await session.acquire()
            await until(lambda: store.heard)
    assert store.heard == ["begin"]
