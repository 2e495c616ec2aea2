"""What travels between verifier and drafter, as values; protobuf stays in `service`."""

from dataclasses import dataclass
from enum import StrEnum

from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Commit, Open


class Reason(StrEnum):
    """Why a session is not served."""

    UNKNOWN = "unknown"
    """Never opened here, or forgotten."""
    STALE = "stale"
    """An older epoch, or a commit that does not continue what is known."""
    OVERLOADED = "overloaded"
    """It cannot be drafted for here."""
    MALFORMED = "malformed"
    """The message makes no sense."""
    INTERNAL = "internal"
    """Drafting for it failed."""


class Refused(Exception):
    """A message cannot be honoured; the session it names gets a Nack and nobody else notices."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that could not be read, and the session it spoiled."""

    session_id: str
    epoch: int
    detail: str


Message = Open | Commit | Close | Malformed


@dataclass(frozen=True, slots=True)
class End:
    """No more drafts come for the prefix of `base_len` tokens, committed and drafted."""

    session_id: str
    epoch: int
    base_len: int


@dataclass(frozen=True, slots=True)
class Nack:
    """A session is not served."""

    session_id: str
    epoch: int
    """Of the refused message."""
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What one step has for one stream."""

    drafts: tuple[DraftTokens, ...] = ()
    ends: tuple[End, ...] = ()
    nacks: tuple[Nack, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the drafter is."""

    sessions: int
    step_seconds: float
    """Recent seconds per step, whole batch."""
