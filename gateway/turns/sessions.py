"""Caller's interface to sessions: create, describe, list and delete. A session is visible to its own tenant only."""

from contextlib import suppress
from dataclasses import dataclass

from gateway.callers.caller import ANONYMOUS
from gateway.models.served import ServedModel
from gateway.store.values import SessionState
from gateway.turns.services import Services
from gateway.turns.turn import check_session_id, new_session_id, session_id_for
from specdec.errors import FieldInvalid, SessionExpired, SessionNotFound, UserRequired

MAX_PAGE = 100
"""Most sessions on one page."""
DEFAULT_PAGE = 20
"""Default number of sessions on a page."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Snapshot of a session."""

    id: str
    model: str
    turn: int
    """Number of turns begun."""
    tokens: int
    """Committed tokens of all turns, prompts included."""
    generating: bool
    """Whether its last turn is being generated."""
    expires_in: float
    """Seconds until the session is deleted, if it is not used before."""


class UserSessions:
    """The sessions of all tenants."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, tenant: str, model: str = "", ttl: float | None = None, key: str = "") -> SessionInfo:
        """Create a session.

        Args:
            model: model name; empty selects the default model.
            ttl: lifetime in seconds after the last use; None uses the server's limit.
            key: idempotency key, which creates one session per tenant and key; empty creates a new one each time.

        Raises:
            ModelNotFound: the model is not served.
            NoVerifier: no verifier is ready, so the session's fingerprint is unknown.
            FieldInvalid: `ttl` is out of range.
            UserRequired: there is a key, but the tenant is anonymous.
        """
        services = self._services
        served = services.models.named(model)
        if key and tenant == ANONYMOUS:
            raise UserRequired("a key for a session needs a user: without one, a guessed key opens the session", "user")
        if ttl is not None and not 1 <= ttl <= services.settings.session_ttl:
            raise FieldInvalid(f"ttl must be between 1 and {services.settings.session_ttl:g} seconds", "ttl")
        kept, sessions = services.models.kept(served, served.info.system_fingerprint), services.sessions
        with await services.calls.enter(tenant):
            secret = await sessions.secret() if key else b""
            session_id = session_id_for(secret, tenant, f"session {key}") if key else new_session_id()
            await sessions.create(session_id, tenant, kept, ttl, listed=tenant != ANONYMOUS)
            return await self._read(session_id, tenant)

    async def model_of(self, name: str, session_id: str, tenant: str) -> ServedModel:
        """Return the model of a request: the named model, else the session's, else the default.

        Raises:
            ModelNotFound: the model is not served.
            SessionNotFound, SessionExpired: the session does not exist or has expired.
        """
        models = self._services.models
        if name or not session_id:
            return models.named(name)
        with await self._services.calls.enter(tenant):
            view = await self._services.sessions.get(check_session_id(session_id), tenant)
        return models.of_session(view.model_fingerprint, "")[0]

    async def get(self, session_id: str, tenant: str) -> SessionInfo:
        """Return one session; raises SessionNotFound or SessionExpired."""
        with await self._services.calls.enter(tenant):
            return await self._read(check_session_id(session_id), tenant)

    async def page(self, tenant: str, limit: int, after: str = "") -> list[SessionInfo]:
        """Return at most `limit` sessions made with `create`, newest first, starting after the session `after`.

        Raises:
            FieldInvalid: `limit` is out of range.
            UserRequired: the tenant is anonymous, so its sessions belong to unrelated callers.
        """
        if tenant == ANONYMOUS:
            raise UserRequired("sessions are listed for a user; those of callers without have only ids", "user")
        if not 1 <= limit <= MAX_PAGE:
            raise FieldInvalid(f"limit must be between 1 and {MAX_PAGE}", "limit")
        with await self._services.calls.enter(tenant):
            names = await self._services.sessions.list_ids(tenant, limit, after)
            found = [await self._read_or_delete(name, tenant) for name in names]
        return [session for session in found if session is not None]

    async def delete(self, session_id: str, tenant: str) -> None:
        """Delete a session; raises SessionNotFound."""
        with await self._services.calls.enter(tenant):
            await self._services.sessions.delete(check_session_id(session_id), tenant)

    async def _read_or_delete(self, session_id: str, tenant: str) -> SessionInfo | None:
        """Return a session of the user's list; an expired one is removed from the list."""
        try:
            return await self._read(session_id, tenant)
        except (SessionNotFound, SessionExpired):
            with suppress(SessionNotFound):
                await self._services.sessions.delete(session_id, tenant)
            return None

    async def _read(self, session_id: str, tenant: str) -> SessionInfo:
        view = await self._services.sessions.get(session_id, tenant)
        return SessionInfo(
            id=session_id,
            model=self._services.models.name_of(view.model_fingerprint),
            turn=view.turn,
            tokens=view.n,
            generating=view.state is SessionState.GENERATING,
            expires_in=view.expires_in,
        )
