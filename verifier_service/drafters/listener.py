"""What a session hears of its drafter."""

from enum import StrEnum
from typing import Protocol

from specdec.wire.draft import DraftTokens


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
    INTERNAL = "internal"
    """Drafting failed there."""


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
