"""Requests that a client repeats by itself: one turn, however often it is asked for."""

from gateway.request import GenerationRequest, new_id
from gateway.store.sessions import SessionStore
from gateway.store.values import SessionState, SessionView
from gateway.turns.turn import check_session_id


async def turn_key(request: GenerationRequest, sessions: SessionStore) -> tuple[str, SessionView | None]:
    """The idempotency key of a request's turn, and its session as that key sees it; None for a session of its own.

    A turn without a key of the caller's is known by its content and its place. So a client that repeats a request by
    itself, after a timeout as much as while the turn runs, gets the turn that it began and says nothing twice.

    Raises:
        SessionNotFound, SessionExpired: there is no such session.
    """
    key = request.idempotency_key
    if not request.session:
        return key or new_id(), None
    view = await sessions.get(check_session_id(request.session), request.tenant, key)
    if key or (request.expect_turn is not None and request.retries is None):  # of two writers, one is refused
        return key or new_id(), view
    if view.turn and (request.retries or view.state is SessionState.GENERATING):
        key = f"{request.digest}:{view.turn - 1}"
        before = await sessions.get(request.session, request.tenant, key)
        if before.request_turn is not None:
            return key, before
    return f"{request.digest}:{view.turn}", view
