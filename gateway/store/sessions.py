"""Contract of the session store. Committed tokens are the source of truth, and every change is one fenced step."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from gateway.store.values import LapsedTurn, Lease, Opened, RoundCommit, SessionView, TurnView
from specdec.errors import SpecdecError


class SessionStore(Protocol):
    """Store of sessions. Every operation is atomic, safe to repeat, and raises SessionStoreDown without a server.

    An operation on another tenant's session raises SessionNotFound, as if the session did not exist. An operation on
    a session whose tokens have expired raises SessionExpired.
    """

    async def secret(self) -> bytes:
        """Return the secret of all gateways, created by the first caller; it outlives every id derived from it."""

    async def create(
        self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None, listed: bool = True
    ) -> None:
        """Create a session without turns; an existing session stays unchanged.

        Args:
            session_id: id of the session.
            tenant: owner of the session.
            model_fingerprint: model that the session belongs to.
            ttl: lifetime in seconds after the last use; None uses the store's default.
            listed: whether to add the session to its tenant's list.

        Raises:
            SessionStoreFull: the store has no memory for new sessions.
        """

    async def delete(self, session_id: str, tenant: str) -> None:
        """Delete a session. The next commit of a running turn fails."""

    async def list_ids(self, tenant: str, limit: int, after: str = "") -> list[str]:
        """Return at most `limit` ids of sessions that the tenant created, newest first, starting after `after`."""

    async def get(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        """Return the session, with the turn that the request `request_id` opened in it."""

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        """Return a turn of the session.

        Args:
            session_id: id of the session.
            tenant: owner of the session.
            turn: number of the turn.
            after: read only rounds committed when the log had this many tokens or more; None reads the whole turn.

        Raises:
            SessionNotFound: also if the session has no such turn yet.
            SessionExpired: also if the rounds of the turn have expired.
        """

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        """Return when `read` would find a round after `after`, or after `timeout` seconds; may return early."""

    async def open(  # noqa: PLR0913  # one step, its arguments
        self,
        session_id: str,
        request_id: str,
        tokens: Sequence[int],
        params_blob: bytes,
        model_fingerprint: str,
        tenant: str,
        expect_turn: int | None = None,
        digest: str = "",
        create: bool = True,
        base: int | None = None,
    ) -> Opened:
        """Append the caller's tokens and open a turn; an unfinished turn without an owner is ended first.

        Args:
            session_id: id of the session.
            request_id: idempotency key; a repeated request gets the turn that it opened before.
            tokens: new tokens, at least one; the log already holds those of earlier turns.
            params_blob: parameters of the turn for its readers; opaque to the store.
            model_fingerprint: model that the session belongs to.
            tenant: owner of the session.
            expect_turn: number of turns that the session must have; None accepts any.
            digest: hash of the request's content.
            create: whether to create a missing session.
            base: length of the log that the tokens continue; the log is cut to it. None keeps the whole log.

        Raises:
            SessionBusy: the previous turn is still being generated.
            TurnConflict: the session does not have `expect_turn` turns.
            IdempotencyKeyReused: the request id was used before with another digest.
            FieldRequired: there are no tokens.
            FieldInvalid: the session belongs to another model.
            ContextLengthExceeded: the log would be longer than the store allows.
            SessionStoreFull: the store has no memory for new turns; running turns continue.
        """

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        """Become the owner of the running turn. Every earlier owner is fenced from now on.

        Raises:
            TurnOver: no turn runs, or another turn than `turn`.
            SessionHeld: the lease of another owner is valid.
            SessionNotFound: there is no such session.
        """

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        """Append the rounds of one pass and renew the leases of their turns; each session is fenced separately.

        Rounds of one session are appended in the given order. A round committed twice is stored once. Cancelling the
        caller does not stop the write.

        Returns:
            For each round, in order: whether its turn was cancelled, or the error of that round. Fenced: the session
            has a newer owner. SessionDiverged: the round does not continue the log, or differs from the log at its
            position. SessionNotFound: the session does not exist.

        Raises:
            SessionStoreDown: the server does not answer. Any of the rounds may be stored, and all may be repeated.
        """

    async def renew(self, leases: Sequence[tuple[str, int]]) -> Sequence[bool | SpecdecError]:
        """Renew leases, each given as session id and epoch, for example during a slow round.

        Returns:
            For each lease, in order: whether its turn was cancelled, or Fenced if the session has a newer owner or no
            longer exists.
        """

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """Cancel a turn. Its owner is notified by the next commit or renewal; a turn without an owner ends now.

        Returns:
            False if the turn does not run.
        """

    def cancellations(self, owner: str) -> AsyncIterator[tuple[str, int]]:
        """Yield session id and turn of each of this owner's turns cancelled from now on, forever.

        An item is a hint: it may be late, be lost, or name a turn that has ended.
        """

    async def release(self, session_id: str, epoch: int) -> bool:
        """Release the lease, so that another owner can acquire the turn at once; False if the epoch is not current."""

    async def lapsed_turns(self, limit: int) -> list[LapsedTurn]:
        """Return turns whose lease expired without a release; examines at most `limit` sessions."""

    async def check(self) -> None:
        """Return if the store accepts new turns. Pending commands do not delay the answer.

        Raises:
            SessionStoreFull: the store has no memory for new turns.
        """

    async def close(self) -> None:
        """Finish the writes in flight, then close the connections."""
