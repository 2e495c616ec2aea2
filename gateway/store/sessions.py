"""Sessions: the committed tokens are the truth, and every change to them is one fenced step.

Knows nothing of text, models or transports: token ids and opaque bytes go in, frozen values come out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.store.orphans import Orphan
from gateway.store.redis_client import ServerFacts


class SessionState(StrEnum):
    """Whether a turn is still being generated."""

    GENERATING = "GEN"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn has begun, or had begun already when the same request came before."""

    turn: int
    """1 for the first."""
    base: int
    """Index of the turn's first output token: everything before it is prompt."""
    state: SessionState = SessionState.GENERATING
    repeated: bool = False
    """This request id opened the turn earlier: attach to it, do not run it twice."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Ownership of a turn that is being generated, and where it stands."""

    epoch: int
    """Fencing number: higher than that of every earlier owner."""
    n: int
    """Committed tokens, prompt included."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One round to append; no token of it may be shown before the store has said yes.

    Raises:
        ValueError: neither tokens nor a finish.
    """

    session_id: str
    epoch: int
    base: int
    """Committed length this round continues."""
    tokens: Sequence[int]
    finish: str = ""
    """Why the turn ends; empty while it goes on."""
    note: bytes = b""
    """What else a reader of this round is to know."""

    def __post_init__(self) -> None:
        if not self.tokens and not self.finish:
            raise ValueError("a commit needs tokens or a finish")


@dataclass(frozen=True, slots=True)
class Committed:
    """The store has the round, now or since an earlier try."""

    n: int
    """Committed tokens, prompt included."""
    cancelled: bool
    """Someone asked for the turn to end."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as a whole, at one moment."""

    turn: int
    """Turns begun; 0 for none yet."""
    state: SessionState
    """Of the last turn."""
    n: int
    """Committed tokens of all turns."""
    model_fingerprint: str
    expires_in: float
    """Seconds until it is gone, unless it is used."""
    request_turn: int | None = None
    """The turn that the request asked about opened; None when it opened none."""


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A committed round as it is read back."""

    tokens: tuple[int, ...]
    finish: str
    note: bytes


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn, or what of it came after a position, at one moment."""

    state: SessionState
    lease_left: float
    """Seconds for which its owner keeps others out; 0 when anyone may take it."""
    prompt: tuple[int, ...]
    """Everything before the output; empty unless the whole turn was read."""
    params: bytes
    """As given to `open`; empty unless the whole turn was read."""
    rounds: tuple[StoredRound, ...]


class SessionStore(Protocol):
    """Where sessions live. Every operation is atomic and may be repeated; each raises SessionStoreDown.

    Whatever names a session and a tenant raises SessionNotFound for another tenant's, as for one that never was, and
    SessionExpired for one whose tokens are gone.
    """

    async def create(self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None) -> None:
        """Make a session without turns; it lives for `ttl` seconds after its last use, or as long as the store says."""

    async def delete(self, session_id: str, tenant: str) -> None:
        """Forget a session; a turn that runs ends at its next commit."""

    async def named(self, tenant: str, limit: int, after: str = "") -> list[str]:
        """Sessions that were made with `create`, newest first, those behind `after`."""

    async def look(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        """A session, and which of its turns a request opened."""

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        """A turn: all of it, or the rounds that came when the log was `after` tokens long or more.

        Raises:
            SessionNotFound: also when the session has not come to that turn.
            SessionExpired: also when its events are not kept any more.
        """

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        """Return when `read` would find something behind `after`, or after `timeout` seconds, or early."""

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
    ) -> Opened:
        """Append the caller's tokens and begin a turn; one before it that was broken off ends where it stands.

        Args:
            tokens: at least one; history is never sent again.
            expect_turn: refuse unless this many turns came before; None takes it as it is.
            digest: of what the request asks; the same request id with another digest is a mistake.
            create: make the session when it is not there.

        Raises:
            SessionBusy: the turn before is being generated, or `expect_turn` is not the count.
            IdempotencyKeyReused: the request id came before, with another digest.
            FieldRequired: no tokens.
            FieldInvalid: the session speaks with another model.
            ContextLengthExceeded: the log would be longer than the store allows.
            SessionStoreFull: there is no room for new turns; those that run go on.
        """

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        """Become the owner of the running turn; from now on every earlier owner is fenced out.

        Raises:
            TurnOver: no turn runs, or not the one named.
            SessionHeld: the lease of another owner runs.
            SessionNotFound: no such session.
            SessionExpired: its tokens are gone.
        """

    async def commit(self, commit: Commit) -> Committed:
        """Append one round and renew the lease; the same round twice is the same as once.

        Cancelling the caller does not cancel the write.

        Raises:
            Fenced: a newer owner has the session.
            SessionDiverged: the round does not continue the log, or differs from what the log holds there.
            SessionNotFound: no such session.
        """

    async def renew(self, session_id: str, epoch: int) -> bool:
        """Keep the lease during a slow round; True when someone asked for the turn to end.

        Raises:
            Fenced: a newer owner has the session, or it is gone.
        """

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """End a turn: its owner ends it, with its next commit or renewal at the latest; one without an owner ends now.

        Returns:
            False when that turn is not running.
        """

    async def cancelled(self, session_id: str, turn: int) -> None:
        """Return soon after someone asked the turn's owner to end it; a hint, which may be late or never come."""

    async def release(self, session_id: str, epoch: int) -> bool:
        """Give the lease back for another to take at once; False when it was not ours any more."""

    async def orphans(self, limit: int) -> list[Orphan]:
        """Turns whose owner was silent for longer than its lease; of at most `limit` that seem so."""

    async def tokens(self, session_id: str) -> list[int]:
        """The committed log, prompts and outputs of all turns.

        Raises:
            SessionNotFound: no such session.
        """

    async def ping(self) -> None:
        """Return when the store answers."""

    async def server_facts(self) -> ServerFacts:
        """What the store runs on."""

    async def close(self) -> None:
        """Finish what is being written and let the connections go."""
