"""The values that go into the session store and come out of it: token ids and opaque bytes, no text and no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SessionState(StrEnum):
    """Whether the last turn of a session is still being generated."""

    GENERATING = "GEN"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class Opened:
    """The turn that a request has opened, now or when the same request came before."""

    turn: int
    """The turn's number, 1 for the first of its session."""
    repeated: bool = False
    """Whether the request id had opened the turn earlier, so that the turn must not be run twice."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Ownership of a turn that is being generated."""

    epoch: int
    """The fencing number, higher than that of every earlier owner."""
    n: int
    """Tokens in the log, prompts included."""


@dataclass(frozen=True, slots=True)
class RoundCommit:
    """One round to append to the log; no token of it may be shown before the store has accepted it.

    Raises:
        ValueError: there are neither tokens nor a finish.
    """

    session_id: str
    epoch: int
    """The epoch of the owner who commits."""
    base: int
    """The length of the log that this round continues, in tokens."""
    tokens: Sequence[int]
    finish: str = ""
    """Why the turn ends; empty while it goes on."""
    note: bytes = b""
    """What is stored beside the tokens for readers of the round; opaque to the store."""

    def __post_init__(self) -> None:
        if not self.tokens and not self.finish:
            raise ValueError("a commit needs tokens or a finish")


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A committed round as it is read back."""

    tokens: tuple[int, ...]
    finish: str
    """Why the turn ended with this round; empty when it went on."""
    note: bytes
    """The note of its commit."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as a whole, at one moment."""

    turn: int
    """The number of turns that were opened; 0 before the first."""
    state: SessionState
    """The state of the last turn."""
    n: int
    """Tokens in the log, of all turns."""
    model_fingerprint: str
    """What `create` or the first `open` said of its model."""
    expires_in: float
    """Seconds until the session expires, unless it is used before."""
    request_turn: int | None = None
    """The turn that the given request opened; None when it opened none."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn, or its rounds behind a position, at one moment."""

    state: SessionState
    lease_left: float
    """Seconds until the owner's lease ends; 0 when there is no owner."""
    prompt: tuple[int, ...]
    """All tokens before the output; empty unless the whole turn was read."""
    params: bytes
    """The parameters given to `open`; empty unless the whole turn was read."""
    rounds: tuple[StoredRound, ...]


@dataclass(frozen=True, slots=True)
class LapsedTurn:
    """A turn that is still to be generated, and whose owner neither renewed nor released its lease."""

    session_id: str
    tenant: str
    turn: int
    silent: float
    """Seconds since the lease ended."""
