"""Sessions from the caller's side: created, described, listed and deleted, each visible to its own tenant only."""

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
"""Sessions on a page when the caller names no limit."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it is at one moment."""

    id: str
    model: str
    turn: int
    """Turns begun so far."""
    tokens: int
    """Committed tokens of all turns, prompts included."""
    generating: bool
    """Whether its last turn is being generated."""
    expires_in: float
    """Seconds until it is deleted, unless it is used before."""


class UserSessions:
    """The sessions of all tenants."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, tenant: str, model: str = "", ttl: float | None = None, key: str = "") -> SessionInfo:
        """Create a session.

        Args:
            model: the model it is for; empty for the first one served.
            ttl: seconds it lives after its last use; None takes the server's limit.
            key: idempotency key: the same key of the same tenant creates one session; empty for a new one each time.

        Raises:
            ModelNotFound: the model is not served.
            NoVerifier: no verifier is ready, whose fingerprint the session could have.
            FieldInvalid: `ttl` is out of range.
            UserRequired: there is a key, and the tenant is everybody.
        """
        services = self._services
        served = services.models.named(model)
        if key and tenant == ANONYMOUS:
            raise UserRequired("a key for a session needs a user: whoever guesses the key gets the session", "user")
        if ttl is not None and not 1 <= ttl <= services.settings.session_ttl:
            raise FieldInvalid(f"ttl must be between 1 and {services.settings.session_ttl:g} seconds", "ttl")
        kept, sessions = services.models.kept(served, served.pool.info.system_fingerprint), services.sessions
        with await services.calls.enter(tenant):
            secret = await sessions.secret() if key else b""
            session_id = session_id_for(secret, tenant, f"session {key}") if key else new_session_id()
            await sessions.create(session_id, tenant, kept, ttl, listed=tenant != ANONYMOUS)
            return await self._read(session_id, tenant)

    async def model_of(self, name: str, session_id: str, tenant: str) -> ServedModel:
        """The model of a request: the one it names, or that of its session, or the first one served.

        Raises:
            ModelNotFound: the model is not served.
            SessionNotFound, SessionExpired: there is no such session.
        """
        models = self._services.models
        if name or not session_id:
            return models.named(name)
        with await self._services.calls.enter(tenant):
            view = await self._services.sessions.get(check_session_id(session_id), tenant)
        return models.of_session(view.model_fingerprint, "")[0]

    async def get(self, session_id: str, tenant: str) -> SessionInfo:
        """One session; raises SessionNotFound or SessionExpired."""
        with await self._services.calls.enter(tenant):
            return await self._read(check_session_id(session_id), tenant)

    async def page(self, tenant: str, limit: int, after: str = "") -> list[SessionInfo]:
        """At most `limit` sessions made with `create`, newest first, from the one behind the id `after` on.

        Raises:
            FieldInvalid: `limit` is out of range.
            UserRequired: the tenant is everybody, so that the sessions are those of callers who do not know each other.
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
        """A session of the user's list; one that has expired is taken off the list."""
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
