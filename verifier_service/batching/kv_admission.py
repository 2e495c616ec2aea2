"""Which sessions have KV: who comes in, who may grow, and who gives up when there is no more. On the model's thread."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from specdec.engine.kv_pool import KvMemory
from verifier_service.batching.batch_plan import KvRequest

IDLE_SECONDS = 1.0
"""A session that asks for nothing for so long gives up its KV to any that waits."""


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


class KvAdmission:
    """The sessions that have KV. One that gives it up loses time and nothing else: it computes its tokens again.

    Whoever is first in rank can take the KV of all others, and a session whose limit does not fit alone is never let
    in: so there is always one that gets on, and it stays the first until it ends.
    """

    def __init__(self, engine: KvEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seated: dict[str, KvRequest] = {}
        self._used: dict[str, float] = {}
        """When each that is seated last asked for anything."""
        self.preempted = 0
        """How often a session has given up its KV to another."""

    def __len__(self) -> int:
        return len(self._seated)

    def __contains__(self, session: object) -> bool:
        return session in self._seated

    def enter(self, claim: KvRequest, tokens: Sequence[int]) -> bool:
        """Give KV to a session of these tokens, if need be that of sessions which ask for nothing, whatever their rank.

        So a caller who does not read cannot keep others out.

        Returns:
            False when there is no room now.
        """
        while not self._engine.admit(claim.session, claim.limit, tokens, claim.domain):
            idle = min(self._used, key=self._used.__getitem__, default=None)
            if idle is None or self._used[idle] > self._clock() - IDLE_SECONDS:
                return False
            self._preempt(idle)
        self._seated[claim.session] = claim
        self.use(claim.session)
        return True

    def use(self, session: str) -> None:
        """Take note that a session asks for something."""
        if session in self._seated:
            self._used[session] = self._clock()

    def leave(self, session: str) -> None:
        """End a session, whether it has KV or not."""
        if self._seated.pop(session, None) is not None:
            del self._used[session]
            self._engine.release(session)

    def grow(self, session: str, length: int) -> bool:
        """Have memory for `length` tokens of a session, taken from those behind it in rank if need be.

        Returns:
            False when there are none behind it: it has given up its own KV.
        """
        while not self._engine.reserve(session, length):
            last = max(self._seated.values(), key=lambda claim: claim.rank).session
            self._preempt(last)
            if last == session:
                return False
        return True

    def _preempt(self, session: str) -> None:
        self.leave(session)
        self.preempted += 1
