"""Sessions as their owners see them: made, looked at, listed and forgotten; what is another user's is not there."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from gateway.request import tenant_of
from gateway.store.values import SessionState
from gateway.turns.plan import check_model
from gateway.turns.services import Services
from gateway.turns.turn import check_session_id, new_session_id, session_id_for
from specdec.errors import FieldInvalid, SessionExpired, SessionNotFound

MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Session:
    """One session at one moment."""

    id: str
    model: str
    turn: int
    """Turns begun."""
    tokens: int
    generating: bool
    expires_in: float
    """Seconds, unless it is used."""


class SessionDesk:
    """The sessions of every user."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, user: str, model: str = "", ttl: float | None = None, key: str = "") -> Session:
        """Make a session; the same key makes the same one.

        Args:
            ttl: seconds it lives after its last use; None takes the server's, which is also the most.

        Raises:
            ModelNotFound: the model is not served.
            FieldInvalid: `ttl` is out of range.
        """
        services, tenant = self._services, tenant_of(user)
        check_model(model, services.settings.model.served_name)
        if ttl is not None and not 1 <= ttl <= services.settings.session_ttl:
            raise FieldInvalid(f"ttl must be between 1 and {services.settings.session_ttl:g} seconds", "ttl")
        session_id = session_id_for(tenant, f"session {key}") if key else new_session_id()
        fingerprint = services.pool.facts.system_fingerprint
        await services.sessions.create(session_id, tenant, fingerprint, ttl)
        return await self._look(session_id, tenant)

    async def get(self, session_id: str, user: str) -> Session:
        """Raises SessionNotFound, SessionExpired."""
        return await self._look(check_session_id(session_id), tenant_of(user))

    async def page(self, user: str, limit: int, after: str = "") -> list[Session]:
        """Sessions made with `create`, newest first, those behind `after`.

        Raises:
            FieldInvalid: `limit` is out of range.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise FieldInvalid(f"limit must be between 1 and {MAX_PAGE}", "limit")
        tenant = tenant_of(user)
        names = await self._services.sessions.list_ids(tenant, limit, after)
        found = await asyncio.gather(*(self._look_or_forget(name, tenant) for name in names))
        return [session for session in found if session is not None]

    async def delete(self, session_id: str, user: str) -> None:
        """Raises SessionNotFound."""
        await self._services.sessions.delete(check_session_id(session_id), tenant_of(user))

    async def _look_or_forget(self, session_id: str, tenant: str) -> Session | None:
        try:
            return await self._look(session_id, tenant)
        except (SessionNotFound, SessionExpired):
            with suppress(SessionNotFound):
                await self._services.sessions.delete(session_id, tenant)
            return None

    async def _look(self, session_id: str, tenant: str) -> Session:
        view = await self._services.sessions.get(session_id, tenant)
        return Session(
            id=session_id,
            model=self._services.settings.model.served_name,
            turn=view.turn,
            tokens=view.n,
            generating=view.state is SessionState.GENERATING,
            expires_in=view.expires_in,
        )
