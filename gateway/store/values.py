"""Values read from and written to the session store: token ids and opaque bytes, independent of text and model."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SessionState(StrEnum):
    """Whether the last turn of a session is still being generated."""

    GENERATING = "GEN"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class Opened:
    """Turn opened by a request, now or by an earlier copy of the request."""

    turn: int
    """Number of the turn, 1 for the first of its session."""
    repeated: bool = False
    """Whether the request id opened the turn earlier, so the turn must not run again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Ownership of a turn that is being generated."""

    epoch: int
    """Fencing number, higher than that of every earlier owner."""
    n: int
    """Tokens in the log, prompts included."""


@dataclass(frozen=True, slots=True)
class RoundCommit:
    """Round to append to the log. None of its tokens may be shown before the store accepts it.

    Raises:
        ValueError: there are neither tokens nor a finish.
    """

    session_id: str
    epoch: int
    """Epoch of the committing owner."""
    base: int
    """Length of the log that this round continues, in tokens."""
    tokens: Sequence[int]
    finish: str = ""
    """Finish reason of the turn; empty if it continues."""
    note: bytes = b""
    """Data stored with the tokens for readers of the round; opaque to the store."""

    def __post_init__(self) -> None:
        if not self.tokens and not self.finish:
            raise ValueError("a commit needs tokens or a finish")


@dataclass(frozen=True, slots=True)
class StoredRound:
    """Committed round as read from the store."""

    tokens: tuple[int, ...]
    finish: str
    """Finish reason of the turn; empty if it continued."""
    note: bytes
    """Note of the commit."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """Snapshot of a session."""

    turn: int
    """Number of opened turns; 0 before the first."""
    state: SessionState
    """State of the last turn."""
    n: int
    """Tokens in the log, of all turns."""
    model_fingerprint: str
    """Model fingerprint given to `create` or to the first `open`."""
    expires_in: float
    """Seconds until the session expires, if it is not used before."""
    request_turn: int | None = None
    """Turn that the given request opened; None if it opened none."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """Snapshot of a turn, or of its rounds after a position."""

    state: SessionState
    lease_left: float
    """Seconds until the owner's lease ends; 0 without an owner."""
    prompt: tuple[int, ...]
    """All tokens before the output; empty unless the whole turn was read."""
    params: bytes
    """Parameters given to `open`; empty unless the whole turn was read."""
    rounds: tuple[StoredRound, ...]


@dataclass(frozen=True, slots=True)
class LapsedTurn:
    """Unfinished turn whose owner neither renewed nor released its lease."""

    session_id: str
    tenant: str
    turn: int
    silent: float
    """Seconds since the lease ended."""
