"""Which sessions have KV: who comes in, who may grow, and who gives up when there is no more. On the model's thread."""

from collections.abc import Sequence
from typing import Protocol

from specdec.engine.kv_pool import KvMemory
from verifier_service.plan import Claim


class KvEngine(Protocol):
    """An engine as a keeper of KV."""

    @property
    def memory(self) -> KvMemory:
        """What the KV takes."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a session of that many tokens fits at all."""

    def admit(self, session: str, limit: int, tokens: Sequence[int], domain: str) -> bool:
        """Let a session in; False when there is no room now."""

    def reserve(self, session: str, length: int) -> bool:
        """Have memory for that many tokens; False when there is none now."""

    def release(self, session: str) -> None:
        """Free the session's KV."""

    def length(self, session: str) -> int:
        """Tokens with KV."""


class Seats:
    """The sessions that have KV. One that gives it up loses time and nothing else: it computes its tokens again.

    Whoever is first in rank can take the KV of all others, and a session whose limit does not fit alone is never let
    in: so there is always one that gets on, and it stays the first until it ends.
    """

    def __init__(self, engine: KvEngine) -> None:
        self._engine = engine
        self._seated: dict[str, Claim] = {}
        self.preempted = 0
        """How often a session has given up its KV to another."""

    def __len__(self) -> int:
        return len(self._seated)

    def __contains__(self, session: object) -> bool:
        return session in self._seated

    def enter(self, claim: Claim, tokens: Sequence[int]) -> bool:
        """Give KV to a session of these tokens; False when there is no room now."""
        if not self._engine.admit(claim.session, claim.limit, tokens, claim.domain):
            return False
        self._seated[claim.session] = claim
        return True

    def leave(self, session: str) -> None:
        """End a session, whether it has KV or not."""
        if self._seated.pop(session, None) is not None:
            self._engine.release(session)

    def grow(self, session: str, length: int) -> bool:
        """Have memory for `length` tokens of a session, taken from those behind it in rank if need be.

        Returns:
            False when there are none behind it: it has given up its own KV.
        """
        while not self._engine.reserve(session, length):
            last = max(self._seated.values(), key=lambda claim: claim.rank).session
            self.leave(last)
            self.preempted += 1
            if last == session:
                return False
        return True
