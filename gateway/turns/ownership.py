"""The ownership of a turn while this gateway generates it: acquired, renewed, written under, released."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.metrics import GatewayMetrics
from gateway.store.retry import retry
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.tasks import cancel_and_wait
from specdec.errors import Fenced, SessionStoreDown, SpecdecError

RELEASE_TIMEOUT = 1.0
"""Seconds that a generation which ends early spends on releasing its session."""


class OwnedSession:
    """The session of an opened turn, which only its owner may write to."""

    def __init__(self, sessions: SessionStore, session_id: str, owner: str, metrics: GatewayMetrics, turn: int) -> None:
        self._sessions = sessions
        self._owner = owner
        self._metrics = metrics
        self._turn = turn
        self.id = session_id
        self.epoch = 0
        """Fencing number of the ownership; 0 before it was acquired."""
        self.done = False
        """Whether the turn's end is committed."""
        self.cancelled = asyncio.Event()
        """Set when the caller has cancelled the turn."""

    async def acquire(self, patience: float) -> Lease:
        """Become the owner, or the owner again under a new epoch; writes under the old epoch are refused from now on.

        Args:
            patience: seconds to wait for a session store that does not answer.

        Raises:
            SessionHeld: another gateway owns the turn.
            TurnOver: the turn has ended.
            SessionStoreDown: the store does not answer.
        """
        with self._metrics.store_seconds.labels("acquire").time():
            lease = await retry(lambda: self._sessions.acquire(self.id, self._owner, turn=self._turn), patience)
        self.epoch = lease.epoch
        return lease

    async def commit(self, commit: RoundCommit) -> bool:
        """Write one round.

        Returns:
            Whether the caller has cancelled the turn.

        Raises:
            Fenced: another gateway owns the turn now.
            SessionStoreDown: the store does not answer.
        """
        with self._metrics.store_seconds.labels("commit").time():
            cancelled = await self._sessions.commit(commit)
        self.done = bool(commit.finish)
        return cancelled

    @asynccontextmanager
    async def kept(self, lease: float) -> AsyncIterator[None]:
        """Renew the lease, of `lease` seconds, inside the context; then release the session unless its turn ended."""
        renewal = asyncio.create_task(self._renew(lease / 3))
        watch = asyncio.create_task(self._watch_for_cancel())
        try:
            yield
        finally:
            await cancel_and_wait(renewal)
            await cancel_and_wait(watch)
            if self.epoch and not self.done:
                await release(self._sessions, self.id, self.epoch)

    async def _watch_for_cancel(self) -> None:
        """Hear of a cancellation at once; one that is missed here is found by the next renewal or commit."""
        await self._sessions.wait_cancelled(self.id, self._turn)
        self.cancelled.set()

    async def _renew(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            if not self.epoch:
                continue
            try:
                if await self._sessions.renew(self.id, self.epoch):
                    self.cancelled.set()
            except SessionStoreDown:
                continue
            except Fenced:  # the next commit raises it where it is handled
                return


async def release(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Release a session if the store answers at once; otherwise its lease runs out by itself."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
