"""What a link reports to a session about its drafter."""

from enum import StrEnum
from typing import Protocol

from specdec.wire.draft import DraftTokens


class Refusal(StrEnum):
    """Why a drafter does not serve a session."""

    UNKNOWN = "unknown"
    """The session was never opened at the drafter, or the drafter has forgotten it."""
    STALE = "stale"
    """The message has an older epoch, or does not continue the tokens that the drafter has."""
    OVERLOADED = "overloaded"
    """The drafter has no room."""
    MALFORMED = "malformed"
    """One side sent a message that makes no sense."""
    INTERNAL = "internal"
    """Drafting failed."""


class Listener(Protocol):
    """Takes a drafter's messages about one session; called on the event loop, must not block."""

    @property
    def epoch(self) -> int:
        """The session's epoch; messages of another one are not for this listener."""

    def drafted(self, chunk: DraftTokens) -> None:
        """Take drafted tokens."""

    def ended(self, length: int) -> None:
        """Note that no more tokens come for the prefix of that length, committed and drafted."""

    def refused(self, reason: Refusal) -> None:
        """Note that the drafter does not serve the session; the link has forgotten it."""

    def lost(self) -> None:
        """Note that the link broke and has forgotten the session."""
