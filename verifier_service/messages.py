"""What travels between verifier and drafter, as values; protobuf stays in the client."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from specdec.params import Mode, SamplingParams
from specdec.wire.draft import DraftTokens


@dataclass(frozen=True, slots=True)
class Open:
    """Begins a session at a drafter from a known prefix, and asks for its first draft."""

    session_id: str
    epoch: int
    tokens: tuple[int, ...]
    """Prompt and committed output."""
    prompt_len: int
    params: SamplingParams
    mode: Mode
    gamma: int
    max_len: int
    """Length the sequence may reach."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What the target committed; asks for the next draft."""

    session_id: str
    epoch: int
    base_len: int
    """Committed length before `tokens`."""
    tokens: tuple[int, ...]
    gamma: int


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session."""

    session_id: str
    epoch: int


class Refusal(StrEnum):
    """Why a drafter does not serve a session."""

    UNKNOWN = "unknown"
    """Never opened there, or forgotten."""
    STALE = "stale"
    """Older epoch, or a gap."""
    OVERLOADED = "overloaded"
    """No room."""
    MALFORMED = "malformed"
    """One side sent what makes no sense."""


class Listener(Protocol):
    """Hears what a drafter says about one session; called on the event loop, must not block."""

    @property
    def epoch(self) -> int:
        """Messages of another epoch are not for this listener."""

    def drafted(self, chunk: DraftTokens) -> None:
        """Tokens came."""

    def ended(self, length: int) -> None:
        """No more will come for the prefix of that length, committed and drafted."""

    def refused(self, reason: Refusal) -> None:
        """The drafter does not serve the session; the link has forgotten it."""

    def lost(self) -> None:
        """The link broke and has forgotten the session."""
