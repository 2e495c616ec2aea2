"""Sessions: the committed tokens are the truth, and every change to them is one fenced step.

Knows nothing of text, models or transports: token ids and opaque bytes go in, frozen values come out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.redis_client import ServerFacts


class SessionState(StrEnum):
    """Whether the current turn is still being generated."""

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
    """Ownership of a session, and all that is needed to go on from where it stands."""

    epoch: int
    """Fencing number: higher than that of every earlier owner."""
    n: int
    """Committed tokens, prompt included."""
    base: int
    """Index of the turn's first output token."""
    turn: int
    state: SessionState
    params: bytes
    """As given to `open`."""
    tail: str
    """Text committed but held back."""
    drafted: int
    accepted: int


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
    text: str = ""
    """Text this round releases."""
    tail: str = ""
    """Text held back after it."""
    drafted: int = 0
    accepted: int = 0
    finish: str = ""
    """Why the turn ends; empty while it goes on."""

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


class SessionStore(Protocol):
    """Where sessions live. Every operation is atomic and may be repeated; each raises SessionStoreDown."""

    async def open(  # noqa: PLR0913  # one step, its arguments
        self,
        session_id: str,
        request_id: str,
        tokens: Sequence[int],
        params_blob: bytes,
        model_fingerprint: str,
        tenant: str,
        expect_turn: int | None = None,
    ) -> Opened:
        """Append the caller's tokens and begin a turn; a session that is not there is made.

        Args:
            tokens: at least one; history is never sent again.
            expect_turn: refuse unless this many turns came before; None takes it as it is.

        Raises:
            SessionBusy: the turn before is not done, or `expect_turn` is not the count.
            SessionNotFound: the session is another tenant's.
            FieldRequired: no tokens.
            FieldInvalid: the session speaks with another model.
            ContextLengthExceeded: the log would be longer than the store allows.
        """

    async def acquire(self, session_id: str, owner: str, steal: bool = False) -> Lease:
        """Become the owner; from now on every earlier owner is fenced out.

        Raises:
            SessionBusy: another owner's lease runs and `steal` is not set.
            SessionNotFound: no such session.
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
        """Ask the owner, whoever it is, to end the turn; False when that turn is not running.

        Raises:
            SessionNotFound: no such session of this tenant.
        """

    async def release(self, session_id: str, epoch: int) -> bool:
        """Give the lease back for another to take at once; False when it was not ours any more."""

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
