"""Leases of the turns that this gateway generates, with one renewal task and one cancellation stream for all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from gateway.store.sessions import SessionStore
from gateway.tasks import cancel_and_wait
from specdec.errors import SessionStoreDown


class Owned(Protocol):
    """Session that this gateway owns or is about to acquire."""

    session_id: str
    turn: int
    epoch: int
    """Fencing number of the ownership; 0 before it is acquired."""

    def cancel(self) -> None:
        """Handle the caller's cancellation of the turn."""


class Leases:
    """Renews leases and receives cancellations while at least one session is held."""

    def __init__(self, sessions: SessionStore, owner: str, lease: float) -> None:
        """Manage the leases of `owner`, which last `lease` seconds and are renewed every third of that."""
        self._sessions = sessions
        self._owner = owner
        self._every = lease / 3
        self._held: dict[str, Owned] = {}
        """Owned sessions by session id."""
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def held(self, session: Owned) -> AsyncIterator[None]:
        """Renew the session's lease inside the context, and call its `cancel` when its turn is cancelled."""
        self._held[session.session_id] = session
        if not self._tasks:
            self._tasks = [asyncio.create_task(work) for work in (self._renew(), self._hear())]
        try:
            yield
        finally:
            if self._held.get(session.session_id) is session:
                del self._held[session.session_id]
            if not self._held:
                ending, self._tasks = self._tasks, []
                for task in ending:
                    await cancel_and_wait(task)

    async def _renew(self) -> None:
        """Renew all leases periodically. The next commit of a fenced session detects the fence."""
        while True:
            await asyncio.sleep(self._every)
            owned = [each for each in self._held.values() if each.epoch]
            try:
                answers = await self._sessions.renew([(each.session_id, each.epoch) for each in owned])
            except SessionStoreDown:
                continue
            for each, answer in zip(owned, answers, strict=True):
                if answer is True:
                    each.cancel()

    async def _hear(self) -> None:
        """Receive cancellations as they happen. The next renewal or commit detects a missed one."""
        async for session_id, turn in self._sessions.cancellations(self._owner):
            held = self._held.get(session_id)
            if held is not None and held.turn == turn:
                held.cancel()
