"""The ownership of a turn while this gateway generates it: acquired, kept, written under, released."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gateway.store.retry import retry
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.turns.services import Services
from gateway.turns.turn import Turn
from specdec.errors import SpecdecError

RELEASE_TIMEOUT = 1.0
"""Seconds that a generation which ends early spends on releasing its session."""


class OwnedSession:
    """The session of an opened turn, which only its owner may write to; as `gateway.turns.leases.Owned`."""

    def __init__(self, services: Services, turn: Turn, on_cancel: Callable[[], None]) -> None:
        """`on_cancel` is called once, when the caller has cancelled the turn."""
        self._services = services
        self._on_cancel = on_cancel
        self.session_id = turn.session_id
        self.turn = turn.number
        self.epoch = 0
        """Fencing number of the ownership; 0 before it was acquired."""
        self.done = False
        """Whether the turn's end is committed."""
        self.cancelled = False
        """Whether the caller has cancelled the turn."""

    def cancel(self) -> None:
        """Note that the caller has cancelled the turn."""
        if not self.cancelled:
            self.cancelled = True
            self._on_cancel()

    async def acquire(self) -> Lease:
        """Become the owner, or the owner again under a new epoch; raises what `SessionStore.acquire` raises."""
        services = self._services
        with services.metrics.store_seconds.labels("acquire").time():
            lease = await retry(
                lambda: services.sessions.acquire(self.session_id, services.owner, self.turn),
                services.settings.store_patience,
            )
        self.epoch = lease.epoch
        return lease

    async def commit(self, commit: RoundCommit) -> None:
        """Write one round; raises the error that `SessionStore.commit` returns for it."""
        (answer,) = await self._services.sessions.commit([commit])
        if isinstance(answer, SpecdecError):
            raise answer

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease inside the context; then release the session unless its turn ended."""
        try:
            async with self._services.leases.held(self):
                yield
        finally:
            if self.epoch and not self.done:
                await release(self._services.sessions, self.session_id, self.epoch)


async def release(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Release a session if the store answers at once; otherwise its lease runs out by itself."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
