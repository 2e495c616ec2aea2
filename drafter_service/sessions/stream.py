"""A verifier's stream as the worker's thread sees it: its messages and its replies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Commit, DraftEnd, Nack, Open, SessionMessage


@dataclass(frozen=True, slots=True)
class MalformedMessage(SessionMessage):
    """An unreadable message; its session is refused."""

    detail: str
    """Description of the error."""


Message = Open | Commit | Close | MalformedMessage
Reply = DraftTokens | DraftEnd | Nack


class Stream(Protocol):
    """One verifier's connection, as the worker's thread sees it."""

    @property
    def number(self) -> int:
        """Number of the stream, unique in this process."""

    @property
    def verifier_id(self) -> str:
        """Name that the verifier gave itself."""

    @property
    def vocabulary(self) -> str:
        """Digest of the vocabulary of the stream's sessions; empty for the drafter's own."""

    @property
    def full(self) -> bool:
        """Whether the verifier reads so slowly that drafting for it should pause."""

    def deliver(self, replies: Sequence[Reply]) -> None:
        """Send replies in one frame. Never blocks."""
