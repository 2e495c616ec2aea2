"""An in-memory session store, for tests of its users."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.store.redis_replies import diverged, expired, fenced, not_found, open_refusal
from gateway.store.values import (
    LapsedTurn,
    Lease,
    Opened,
    RoundCommit,
    SessionState,
    SessionView,
    StoredRound,
    TurnView,
)
from specdec.errors import (
    FieldRequired,
    SessionHeld,
    SessionStoreDown,
    SpecdecError,
    TurnOver,
)


@dataclass
class MemoryTurn:
    """Contents of one turn in the store."""

    prompt: tuple[int, ...]
    params: bytes
    rounds: list[StoredRound] = field(default_factory=list)


@dataclass
class MemorySession:
    """Contents of one session in the store."""

    tenant: str
    fingerprint: str
    tokens: list[int] = field(default_factory=list)
    turns: dict[int, MemoryTurn] = field(default_factory=dict)
    """Turns by number. Only the last two keep their rounds."""
    requests: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Turn and digest by request id."""
    turn: int = 0
    generating: bool = False
    finish: str = ""
    epoch: int = 0
    owner: str = ""
    lease_ends: float = 0.0
    """End of the lease on the monotonic clock; 0 after the lease was released."""
    cancelled: bool = False
    listed: bool = False
    """Whether the session was made with `create`."""
    expired: bool = False
    """Whether the session's tokens have expired."""

    @property
    def base(self) -> int:
        """Number of tokens before the output of the last turn."""
        return len(self.turns[self.turn].prompt)

    @property
    def rounds(self) -> list[StoredRound]:
        """Rounds of the last turn."""
        return self.turns[self.turn].rounds

    @property
    def lease_left(self) -> float:
        """Seconds until the lease ends."""
        return max(0.0, self.lease_ends - time.monotonic())

    def end(self, finish: str) -> None:
        """End the running turn."""
        self.generating, self.finish, self.owner = False, finish, ""

    def break_off(self) -> None:
        """End the running turn and fence its owner."""
        self.rounds.append(StoredRound((), "stop", b""))
        self.epoch += 1
        self.end("stop")


class MemorySessionStore:
    """A SessionStore without a server; it passes the contract in tests/contracts.

    `down` makes every operation fail. `journal` lists the operations in order, and `refused` those attempted while the
    store was down. `lapsed` holds the next results of `lapsed_turns`.
    """

    def __init__(self, lease: float = 60.0, max_tokens: int = 1_048_576) -> None:
        self.sessions: dict[str, MemorySession] = {}
        self.journal: list[str] = []
        self.refused: list[str] = []
        self.lapsed: list[LapsedTurn] = []
        self.down = False
        self._cancelled = defaultdict[str, asyncio.Queue[tuple[str, int]]](asyncio.Queue)
        self._lease = lease
        self._max_tokens = max_tokens

    @property
    def only(self) -> MemorySession:
        (session,) = self.sessions.values()
        return session

    async def open(
        self,
        session_id: str,
        request_id: str,
        tokens: Sequence[int],
        params_blob: bytes,
        model_fingerprint: str,
        tenant: str,
        expect_turn: int | None = None,
        digest: str = "",
        create: bool = True,
        base: int | None = None,
    ) -> Opened:
        self._up("open")
        if not tokens:
            raise FieldRequired("a turn needs at least one token", "prompt")
        session = self.sessions.get(session_id) or MemorySession(tenant, model_fingerprint)
        if session.tenant != tenant or (session_id not in self.sessions and not create):
            raise not_found()
        if request_id in session.requests:
            turn, seen = session.requests[request_id]
            if seen != digest:
                raise open_refusal(b"REUSED", [], 0)
            return Opened(turn, repeated=True)
        dropped = len(session.tokens) - len(session.tokens[:base])
        self._check_open(session, model_fingerprint, expect_turn, len(tokens) - dropped)
        self.sessions[session_id] = session
        if session.generating:
            session.break_off()
        session.turn += 1
        session.tokens = [*session.tokens[:base], *tokens]
        session.turns[session.turn] = MemoryTurn(tuple(session.tokens), params_blob)
        session.generating, session.finish, session.cancelled = True, "", False
        session.requests[request_id] = (session.turn, digest)
        self._renew(session)
        return Opened(session.turn)

    async def secret(self) -> bytes:
        self._up("secret")
        return b"a secret of tests"

    async def create(
        self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None, listed: bool = True
    ) -> None:
        self._up("create")
        session = self.sessions.setdefault(session_id, MemorySession(tenant, model_fingerprint))
        if session.tenant != tenant:
            raise not_found()
        session.listed = listed

    async def delete(self, session_id: str, tenant: str) -> None:
        self._of(session_id, tenant)
        del self.sessions[session_id]

    async def list_ids(self, tenant: str, limit: int, after: str = "") -> list[str]:
        found = [name for name, session in self.sessions.items() if session.listed and session.tenant == tenant][::-1]
        if after:
            found = found[found.index(after) + 1 :] if after in found else []
        return found[:limit]

    async def get(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        session = self._kept(session_id, tenant)
        opened = session.requests.get(request_id, (None, ""))[0]
        return SessionView(session.turn, _state(session), len(session.tokens), session.fingerprint, 60.0, opened)

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        session = self._of(session_id, tenant)
        if not 1 <= turn <= session.turn:
            raise not_found()
        if session.expired or turn < session.turn - 1:
            raise expired()
        found = session.turns[turn]
        state = _state(session) if turn == session.turn else SessionState.DONE
        left = session.lease_left if session.owner else 0.0
        if after is None:
            return TurnView(state, left, found.prompt, found.params, tuple(found.rounds))
        behind, length = [], len(found.prompt)
        for stored in found.rounds:
            length += len(stored.tokens)
            if length > after or (length == after and not stored.tokens):
                behind.append(stored)
        return TurnView(state, left, (), b"", tuple(behind))

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        await asyncio.sleep(0.005)

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        self._up("acquire")
        session = self._named(session_id)
        if not session.generating or turn not in (None, session.turn):
            raise TurnOver("the turn is over")
        if session.expired:
            raise expired()
        if session.owner not in ("", owner) and session.lease_left:
            raise SessionHeld("another gateway has the session", session.lease_left)
        session.epoch, session.owner = session.epoch + 1, owner
        self._renew(session)
        return Lease(session.epoch, len(session.tokens))

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        self._up("commit")
        return [_outcome(self._commit, each) for each in rounds]

    def _commit(self, commit: RoundCommit) -> bool:
        session = self._named(commit.session_id)
        if commit.epoch != session.epoch:
            raise fenced(commit.epoch)
        n, tokens = len(session.tokens), list(commit.tokens)
        if commit.base < n or not session.generating:
            there = session.tokens[commit.base : commit.base + len(tokens)]
            same = there == tokens if tokens else commit.base <= n and session.finish == commit.finish
            if not same:
                raise diverged(b"MISMATCH", commit.base, n)
            return session.cancelled
        if commit.base > n:
            raise diverged(b"GAP", commit.base, n)
        session.tokens += tokens
        session.rounds.append(StoredRound(tuple(tokens), commit.finish, commit.note))
        self._renew(session)
        if commit.finish:
            session.end(commit.finish)
        return session.cancelled

    async def renew(self, leases: Sequence[tuple[str, int]]) -> Sequence[bool | SpecdecError]:
        self._up("renew")
        return [_outcome(self._renewed, *each) for each in leases]

    def _renewed(self, session_id: str, epoch: int) -> bool:
        session = self.sessions.get(session_id)
        if session is None or session.epoch != epoch:
            raise fenced(epoch)
        self._renew(session)
        return session.cancelled

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        session = self._of(session_id, tenant)
        if turn != session.turn or not session.generating:
            return False
        if session.owner and session.lease_left:
            session.cancelled = True
            self._cancelled[session.owner].put_nowait((session_id, turn))
        else:
            session.break_off()
        return True

    async def cancellations(self, owner: str) -> AsyncGenerator[tuple[str, int]]:
        while True:
            yield await self._cancelled[owner].get()

    async def release(self, session_id: str, epoch: int) -> bool:
        self._up("release")
        session = self.sessions.get(session_id)
        if session is None or session.epoch != epoch:
            return False
        session.owner, session.lease_ends = "", 0.0
        return True

    async def lapsed_turns(self, limit: int) -> list[LapsedTurn]:
        await self.check()
        lapsed, self.lapsed = self.lapsed[:limit], self.lapsed[limit:]
        return lapsed

    async def check(self) -> None:
        if self.down:
            raise SessionStoreDown("the session store does not answer")

    async def close(self) -> None:
        return

    def _check_open(self, session: MemorySession, model: str, expect_turn: int | None, added: int) -> None:
        if session.fingerprint != model:
            raise open_refusal(b"MODEL", [], 0)
        if session.generating and session.lease_left:
            raise open_refusal(b"BUSY", [session.turn], 0)
        if session.expired:
            raise expired()
        if expect_turn not in (None, session.turn):
            raise open_refusal(b"CONFLICT", [session.turn], 0)
        if len(session.tokens) + added > self._max_tokens:
            raise open_refusal(b"TOOLONG", [len(session.tokens)], self._max_tokens)

    def _renew(self, session: MemorySession) -> None:
        session.lease_ends = time.monotonic() + self._lease

    def _named(self, session_id: str) -> MemorySession:
        if session_id not in self.sessions:
            raise not_found()
        return self.sessions[session_id]

    def _of(self, session_id: str, tenant: str) -> MemorySession:
        self._up("read")
        session = self._named(session_id)
        if session.tenant != tenant:
            raise not_found()
        return session

    def _kept(self, session_id: str, tenant: str) -> MemorySession:
        session = self._of(session_id, tenant)
        if session.expired:
            raise expired()
        return session

    def _up(self, operation: str) -> None:
        if self.down:
            self.refused.append(operation)
            raise SessionStoreDown("the session store does not answer")
        self.journal.append(operation)


def _outcome(step: Callable[..., bool], *arguments: Any) -> bool | SpecdecError:
    """Return the result of `step`, or the error that it raises."""
    try:
        return step(*arguments)
    except SpecdecError as error:
        return error


def _state(session: MemorySession) -> SessionState:
    return SessionState.GENERATING if session.generating else SessionState.DONE
