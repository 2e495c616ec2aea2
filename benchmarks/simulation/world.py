"""Parts of a simulated system: costs, sessions, and servers."""

from collections import deque
from dataclasses import dataclass, field

from specdec.planning.sizing import RoundCosts


@dataclass(frozen=True, slots=True)
class World:
    """Costs of the simulated system. Times are in seconds."""

    alpha: float = 0.7
    gamma: int = 4
    draft_base: float = 0.002
    draft_row: float = 0.001 / 32
    """A drafter's step over B sessions takes draft_base + B·draft_row."""
    verify_base: float = 0.020
    verify_token: float = 0.005 / 160
    """A pass over n tokens takes verify_base + n·verify_token."""
    draft_batch: int = 32
    verify_batch: int = 32
    round_trip: float = 0.002
    timeout: float = 0.2
    """Longest wait for a draft."""
    commit: float = 0.0001
    """Time of a gateway to commit one round."""
    reopen_drafter: float = 0.05
    """Time until a session drafts again after it moves to another drafter."""
    reopen_verifier: float = 0.5
    """Time until a session of a lost verifier is prefilled at another verifier."""

    def draft_seconds(self, rows: int) -> float:
        """Return the time of γ steps over a batch."""
        return self.gamma * (self.draft_base + rows * self.draft_row)

    def verify_seconds(self, tokens: int) -> float:
        """Return the time of one target pass."""
        return self.verify_base + tokens * self.verify_token

    def costs(self) -> RoundCosts:
        """Parameters of the closed form, at full batches."""
        return RoundCosts(
            alpha=self.alpha,
            gamma=self.gamma,
            draft_step=self.draft_base + self.draft_batch * self.draft_row,
            verify_pass=self.verify_seconds(self.verify_batch * (self.gamma + 1)),
            plain_pass=self.verify_seconds(self.verify_batch),
            draft_batch=self.draft_batch,
            verify_batch=self.verify_batch,
            round_trip=self.round_trip,
        )


@dataclass(eq=False)
class Session:
    """A session that generates forever."""

    verifier: "Server"
    drafter: "Server | None"
    gateway: int
    drafted: int = 0
    ready_at: float = 0.0
    """Time at which its move to another verifier ends."""
    drafts_at: float = 0.0
    """Time at which its drafter has read its tokens."""
    committed_at: float = 0.0
    round: int = 0
    """Number of the current round, so that a draft that arrives too late is ignored."""
    active: bool = True


@dataclass(eq=False)
class Server:
    """A drafter or a verifier: a queue in front of one model."""

    queue: deque[tuple[Session, int]] = field(default_factory=deque)
    idle: bool = True
    alive: bool = True
    members: set[Session] = field(default_factory=set)
