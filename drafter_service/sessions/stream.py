"""A verifier's stream as the worker's thread sees it: what comes from it, and what goes to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Commit, DraftEnd, Nack, Open, SessionMessage


@dataclass(frozen=True, slots=True)
class MalformedMessage(SessionMessage):
    """A message that could not be read; its session is refused."""

    detail: str
    """What is wrong with the message."""


Message = Open | Commit | Close | MalformedMessage
Reply = DraftTokens | DraftEnd | Nack


class Stream(Protocol):
    """One verifier's connection, as the worker's thread sees it."""

    @property
    def number(self) -> int:
        """Different for every stream of this process."""

    @property
    def verifier_id(self) -> str:
        """The name that the verifier gave itself."""

    @property
    def vocabulary(self) -> str:
        """Digest of the vocabulary that its sessions are in; empty for the drafter's own."""

    @property
    def full(self) -> bool:
        """Whether the verifier reads so slowly that nothing more should be drafted for it now."""

    def deliver(self, replies: Sequence[Reply]) -> None:
        """Send replies in one frame; never blocks."""
