"""Readiness: whether a request would be served now, and what is missing if not."""

import asyncio

from gateway.drain import Drain
from gateway.store.sessions import SessionStore
from gateway.verifiers.balancer import VerifierPool
from specdec.errors import SpecdecError

STORE_TIMEOUT = 0.5
"""Seconds that the session store has to answer."""


class Health:
    """Checks everything that a generation needs."""

    def __init__(self, pool: VerifierPool, sessions: SessionStore, drain: Drain) -> None:
        self._pool = pool
        self._sessions = sessions
        self._drain = drain

    async def missing(self) -> list[str]:
        """One line for each thing that is missing; empty when the gateway is ready."""
        missing = []
        if self._drain.closing:
            missing.append("the gateway is shutting down")
        if not self._pool.ready_addresses:
            states = [f"verifier {address} is {state}" for address, state in self._pool.states.items()]
            missing += states or ["no verifier is known"]
        if not await self._store_answers():
            missing.append("the session store does not answer")
        return missing

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_TIMEOUT):
                await self._sessions.ping()
        except (SpecdecError, TimeoutError):
            return False
        return True
