"""A session that is ours while we generate: taken, kept alive, written to, given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.metrics import GatewayMetrics
from gateway.store.retry import retry
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.tasks import end
from specdec.errors import Fenced, SessionStoreDown, SpecdecError

RELEASE_TIMEOUT = 1.0
"""Seconds a generation that ends early spends on giving its session back."""


class OwnedSession:
    """The one writer of an opened turn."""

    def __init__(self, sessions: SessionStore, session_id: str, owner: str, metrics: GatewayMetrics, turn: int) -> None:
        self._sessions = sessions
        self._owner = owner
        self._metrics = metrics
        self._turn = turn
        self.id = session_id
        self.epoch = 0
        self.done = False
        self.cancelled = asyncio.Event()
        """Set when someone asked for the turn to end."""

    async def acquire(self, patience: float) -> Lease:
        """Take it, or take it again under a new epoch; what the old epoch still has under way is void.

        Args:
            patience: seconds to wait for a store that is away.

        Raises:
            SessionHeld: another owner has it.
            TurnOver: the turn is done.
            SessionStoreDown: the store does not answer.
        """
        with self._metrics.store_seconds.labels("acquire").time():
            lease = await retry(lambda: self._sessions.acquire(self.id, self._owner, turn=self._turn), patience)
        self.epoch = lease.epoch
        return lease

    async def commit(self, commit: RoundCommit) -> bool:
        """Write one round.

        Returns:
            Whether someone asked for the generation to end.

        Raises:
            Fenced: it is not ours any more.
            SessionStoreDown: the store does not answer.
        """
        with self._metrics.store_seconds.labels("commit").time():
            cancelled = await self._sessions.commit(commit)
        self.done = bool(commit.finish)
        return cancelled

    @asynccontextmanager
    async def kept(self, lease: float) -> AsyncIterator[None]:
        """Inside, the lease of `lease` seconds is renewed; at the end, a session that is not done is given back."""
        heartbeat, heed = asyncio.create_task(self._renew(lease / 3)), asyncio.create_task(self._heed())
        try:
            yield
        finally:
            await end(heartbeat)
            await end(heed)
            if self.epoch and not self.done:
                await released(self._sessions, self.id, self.epoch)

    async def _heed(self) -> None:
        """The short way to be cancelled; what is lost on it, a renewal or commit finds."""
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
            except Fenced:  # the next commit says so to those who must know
                return


async def released(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Give a session back, if that can be done at once; else its lease will run out."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
