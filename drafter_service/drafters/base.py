"""What the worker asks of anything that drafts; all of it is called on the worker's thread only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from drafter_service.sessions.session import Session
from specdec.engine.kv_pool import KvMemory
from specdec.rules.draft import SparseProbs


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a verifier is told of the drafter, and what its messages are checked against."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Valid ids are 0..vocab_size-1."""
    context_length: int
    step_seconds: float
    """Of one draft step for one session, measured at load."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A session's share of one step."""

    session: Session
    count: int
    """How many of its tokens without KV are computed; with the last of them comes a draft."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """One drafted token and, in a mode that needs it, the q̂ it was drawn from."""

    session: Session
    token: int
    probs: SparseProbs | None


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """A session for which nothing can be drafted, through a fault of its own."""

    session: Session
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class Nothing:
    """A session that this drafter has no guess for until more of it is committed."""

    session: Session


Outcome = Proposed | Failed | Nothing


class Drafter(Protocol):
    """Something that continues sequences."""

    info: DrafterInfo

    @property
    def memory(self) -> KvMemory:
        """What the sequences take."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens has room when there is no other."""

    def admit(self, key: str, limit: int, tokens: Sequence[int], domain: str) -> bool:
        """Let in a sequence of these tokens that may reach `limit`; False when there is no room now.

        What others of the same domain have computed of the tokens counts as computed at once.
        """

    def reserve(self, key: str, length: int) -> bool:
        """Have room for the first `length` tokens of a sequence; False when there is none now."""

    def release(self, key: str) -> None:
        """Forget the sequence."""

    def length(self, key: str) -> int:
        """Tokens that are computed already."""

    def truncate(self, key: str, length: int) -> None:
        """Forget what was computed behind the first `length` tokens."""

    def step(self, batch: Sequence[Work]) -> Sequence[Outcome]:
        """Compute the tokens of every Work in one pass, and draw at most one draft for each that is complete with them.

        Raises:
            Exception: the pass failed as a whole; nothing was computed.
        """
