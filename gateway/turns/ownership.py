"""The ownership of a turn while this gateway generates it: acquired, renewed, written under, released."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.store.retry import retry
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.tasks import cancel_and_wait
from gateway.turns.services import Services
from gateway.turns.turn import Turn
from specdec.errors import SessionStoreDown, SpecdecError

RELEASE_TIMEOUT = 1.0
"""Seconds that a generation which ends early spends on releasing its session."""


class OwnedSession:
    """The session of an opened turn, which only its owner may write to."""

    def __init__(self, services: Services, turn: Turn) -> None:
        self._services = services
        self._sessions = services.sessions
        self._turn = turn
        self.epoch = 0
        """Fencing number of the ownership; 0 before it was acquired."""
        self.done = False
        """Whether the turn's end is committed."""
        self.cancelled = asyncio.Event()
        """Set when the caller has cancelled the turn."""

    async def acquire(self) -> Lease:
        """Become the owner, or the owner again under a new epoch; raises what `SessionStore.acquire` raises."""
        services, turn = self._services, self._turn
        with services.metrics.store_seconds.labels("acquire").time():
            lease = await retry(
                lambda: self._sessions.acquire(turn.session_id, services.owner, turn.number),
                services.settings.store_patience,
            )
        self.epoch = lease.epoch
        return lease

    async def commit(self, commit: RoundCommit) -> bool:
        """Write one round; returns whether the turn was cancelled, and raises what `SessionStore.commit` says of it."""
        with self._services.metrics.store_seconds.labels("commit").time():
            (cancelled,) = await self._sessions.commit([commit])
        if isinstance(cancelled, SpecdecError):
            raise cancelled
        self.done = bool(commit.finish)
        return cancelled

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease inside the context; then release the session unless its turn ended."""
        renewal = asyncio.create_task(self._renew(self._services.settings.lease / 3))
        watch = asyncio.create_task(self._watch_for_cancel())
        try:
            yield
        finally:
            await cancel_and_wait(renewal)
            await cancel_and_wait(watch)
            if self.epoch and not self.done:
                await release(self._sessions, self._turn.session_id, self.epoch)

    async def _watch_for_cancel(self) -> None:
        """Hear of a cancellation at once; one that is missed here is found by the next renewal or commit."""
        await self._sessions.wait_cancelled(self._turn.session_id, self._turn.number)
        self.cancelled.set()

    async def _renew(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            if not self.epoch:
                continue
            try:
                (cancelled,) = await self._sessions.renew([(self._turn.session_id, self.epoch)])
            except SessionStoreDown:
                continue
            if isinstance(cancelled, SpecdecError):  # the next commit raises it where it is handled
                return
            if cancelled:
                self.cancelled.set()


async def release(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Release a session if the store answers at once; otherwise its lease runs out by itself."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
