"""The leases of the turns that this gateway generates: one renewal and one stream of cancellations for all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from gateway.store.sessions import SessionStore
from gateway.tasks import cancel_and_wait
from specdec.errors import SessionStoreDown


class Owned(Protocol):
    """A session that this gateway owns, or is about to."""

    session_id: str
    turn: int
    epoch: int
    """Fencing number of the ownership; 0 before it was acquired."""

    def cancel(self) -> None:
        """The caller has cancelled the turn."""


class Leases:
    """Works as long as a session is held."""

    def __init__(self, sessions: SessionStore, owner: str, lease: float) -> None:
        """Renew the leases of `owner`, which last `lease` seconds, three times in a lease."""
        self._sessions = sessions
        self._owner = owner
        self._every = lease / 3
        self._held: dict[str, Owned] = {}
        """By session."""
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def held(self, session: Owned) -> AsyncIterator[None]:
        """Renew the lease of a session inside the context, and tell it when its turn is cancelled."""
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
        """Renew all leases again and again; one that is fenced is found by its next commit."""
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
        """Hear of cancellations at once; one that is missed is found by the next renewal or commit."""
        async for session_id, turn in self._sessions.cancellations(self._owner):
            held = self._held.get(session_id)
            if held is not None and held.turn == turn:
                held.cancel()
