"""The contract of the session store: committed tokens are the truth, and every change to them is one fenced step."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from gateway.store.values import LapsedTurn, Lease, Opened, RoundCommit, SessionView, TurnView
from specdec.errors import SpecdecError


class SessionStore(Protocol):
    """Where sessions live. Every operation is atomic, may be repeated, and raises SessionStoreDown without a server.

    An operation on a session of another tenant raises SessionNotFound, as on a session that never existed. An
    operation on a session whose tokens are not kept any more raises SessionExpired.
    """

    async def secret(self) -> bytes:
        """The secret of all gateways of this store, made by the first that asks; it outlives what it names."""

    async def create(
        self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None, listed: bool = True
    ) -> None:
        """Make a session without turns; one that exists stays as it is.

        Args:
            ttl: seconds for which the session is kept after its last use; None takes the store's default.
            listed: whether the session is in the list of its tenant.

        Raises:
            SessionStoreFull: the store has no memory for new sessions.
        """

    async def delete(self, session_id: str, tenant: str) -> None:
        """Delete a session; the owner of a running turn learns of it with its next commit."""

    async def list_ids(self, tenant: str, limit: int, after: str = "") -> list[str]:
        """At most `limit` ids of the sessions that a tenant made with `create`, newest first, those behind `after`."""

    async def get(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        """The session, and the turn that the request `request_id` opened in it."""

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        """A turn of the session.

        Args:
            after: read only rounds committed when the log had this many tokens or more; None reads the whole turn.

        Raises:
            SessionNotFound: also when the session has no such turn yet.
            SessionExpired: also when the rounds of the turn are not kept any more.
        """

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        """Return when `read` would find a round behind `after`, or after `timeout` seconds; it may return early."""

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
            request_id: the idempotency key; a request that is repeated gets the turn that it opened before.
            tokens: the new tokens, at least one; those of earlier turns are in the log already.
            params_blob: the parameters of the turn, for whoever reads it; opaque to the store.
            expect_turn: the number of turns that the session must have; None accepts any.
            digest: a hash of the request's content.
            create: make the session when it does not exist.
            base: the length of the log that the tokens continue; what it has behind them is dropped. None keeps all.

        Raises:
            SessionBusy: the turn before is being generated, or the session has not `expect_turn` turns.
            IdempotencyKeyReused: the request id came before with another digest.
            FieldRequired: there are no tokens.
            FieldInvalid: the session belongs to another model.
            ContextLengthExceeded: the log would be longer than the store allows.
            SessionStoreFull: the store has no memory for new turns; those that run go on.
        """

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        """Become the owner of the running turn; every earlier owner is fenced from now on.

        Raises:
            TurnOver: no turn runs, or it is not `turn`.
            SessionHeld: the lease of another owner runs.
            SessionNotFound: there is no such session.
        """

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        """Append the rounds of one pass and renew the leases of their turns; each session is fenced on its own.

        The rounds of one session are appended in the order given. The same round committed twice is stored once. When
        the caller is cancelled, the write goes on.

        Returns:
            For each round, in order: whether its turn was cancelled; or the error of that round alone. Fenced: the
            session has a newer owner. SessionDiverged: the round does not continue the log, or differs from what the
            log has there. SessionNotFound: there is no such session.

        Raises:
            SessionStoreDown: the server does not answer; any of the rounds may be stored, and all may be repeated.
        """

    async def renew(self, leases: Sequence[tuple[str, int]]) -> Sequence[bool | SpecdecError]:
        """Renew the leases of sessions, each given with the epoch of its owner, as during a slow round.

        Returns:
            For each lease, in order: True when its turn was cancelled; Fenced when the session has a newer owner, or
            does not exist any more.
        """

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """Cancel a turn: its owner learns of it with its next commit or renewal; one without an owner ends now.

        Returns:
            False when the turn does not run.
        """

    def cancellations(self, owner: str) -> AsyncIterator[tuple[str, int]]:
        """Session id and turn of each turn of this owner that is cancelled from now on, without end.

        This is a hint, which may be late, be lost, or name a turn that is over.
        """

    async def release(self, session_id: str, epoch: int) -> bool:
        """Give the lease up, so that another owner can take the turn at once; False when the epoch is not current."""

    async def lapsed_turns(self, limit: int) -> list[LapsedTurn]:
        """Turns whose lease ended without being released; looks at `limit` sessions at most."""

    async def check(self) -> None:
        """Return when the store takes new turns, however many commands wait for it.

        Raises:
            SessionStoreFull: it has no memory for them.
        """

    async def close(self) -> None:
        """Finish the writes that have begun, then close the connections."""
