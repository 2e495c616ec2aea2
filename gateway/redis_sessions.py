"""The session store on Redis: scripts out, typed values or typed errors back."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import lua
from gateway.redis_client import ServerFacts, connect, server_facts
from gateway.sessions import Commit, Committed, Lease, Opened, SessionState
from specdec.errors import (
    ContextLengthExceeded,
    Fenced,
    FieldInvalid,
    FieldRequired,
    SessionBusy,
    SessionDiverged,
    SessionNotFound,
    SessionStoreDown,
    SpecdecError,
)
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

_Reply = list[bytes]
_COMMIT_PAUSE = 0.2
"""Seconds between the tries of a commit, beyond the client's own retries."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """How long things last, in seconds, and how long a log may grow."""

    lease: float = 10.0
    """An owner that is silent for longer may be replaced."""
    ttl: float = 86_400.0
    """A session nobody touches for longer is gone."""
    patience: float = 5.0
    """A commit is tried for this long while the store is away; the stream waits with it."""
    max_tokens: int = 1_048_576


class RedisSessionStore:
    """A SessionStore (see gateway.sessions) on one Redis or Valkey, 6.2 or newer."""

    def __init__(self, client: Redis, policy: StorePolicy | None = None) -> None:
        self._client = client
        self._policy = policy or StorePolicy()
        self._lease_ms = round(self._policy.lease * 1000)
        self._ttl_ms = round(self._policy.ttl * 1000)
        self._writes: set[asyncio.Task[Committed]] = set()
        self._open = self._script(lua.OPEN)
        self._acquire = self._script(lua.ACQUIRE)
        self._commit = self._script(lua.COMMIT)
        self._renew = self._script(lua.RENEW)
        self._cancel = self._script(lua.CANCEL)
        self._release = self._script(lua.RELEASE)

    @classmethod
    def at(cls, url: str, policy: StorePolicy | None = None) -> Self:
        """The store at a Redis URL; it connects on first use.

        Raises:
            ConfigError: not a Redis URL.
        """
        return cls(connect(url), policy)

    async def open(  # noqa: PLR0913  # one script, its arguments
        self,
        session_id: str,
        request_id: str,
        tokens: Sequence[int],
        params_blob: bytes,
        model_fingerprint: str,
        tenant: str,
        expect_turn: int | None = None,
    ) -> Opened:
        """See SessionStore.open."""
        if not tokens:
            raise FieldRequired("a turn needs at least one token", "prompt")
        expected = "" if expect_turn is None else expect_turn
        ids = tokens_to_bytes(tokens)
        limit = self._policy.max_tokens * 4
        arguments = (request_id, expected, ids, params_blob, model_fingerprint, tenant, self._ttl_ms, limit)
        word, *rest = await self._run(self._open, session_id, *arguments)
        match word:
            case b"OK":
                return Opened(int(rest[0]), int(rest[1]))
            case b"DUP":
                return Opened(int(rest[0]), int(rest[1]), SessionState(rest[2].decode()), repeated=True)
            case _:
                raise _open_refusal(word, rest, self._policy.max_tokens)

    async def acquire(self, session_id: str, owner: str, steal: bool = False) -> Lease:
        """See SessionStore.acquire."""
        word, *rest = await self._run(self._acquire, session_id, owner, self._lease_ms, int(steal))
        match word:
            case b"OK":
                return _lease(rest)
            case b"HELD":
                raise SessionBusy(f"another gateway has the session for {int(rest[1]) / 1000:.1f} s more")
            case _:
                raise _not_found()

    async def commit(self, commit: Commit) -> Committed:
        """See SessionStore.commit."""
        write = asyncio.create_task(self._persist(commit))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await asyncio.shield(write)

    async def renew(self, session_id: str, epoch: int) -> bool:
        """See SessionStore.renew."""
        word, *rest = await self._run(self._renew, session_id, epoch, self._lease_ms)
        if word != b"OK":
            raise _fenced(epoch)
        return rest[0] == b"1"

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """See SessionStore.cancel."""
        word, *_ = await self._run(self._cancel, session_id, tenant, turn)
        if word == b"DENIED":
            raise _not_found()
        return word == b"OK"

    async def release(self, session_id: str, epoch: int) -> bool:
        """See SessionStore.release."""
        word, *_ = await self._run(self._release, session_id, epoch)
        return word == b"OK"

    async def tokens(self, session_id: str) -> list[int]:
        """See SessionStore.tokens."""
        log = await self._guard(self._client.get(lua.keys(session_id)[1]))
        if log is None:
            raise _not_found()
        return tokens_from_bytes(log)

    async def ping(self) -> None:
        """See SessionStore.ping."""
        await self._guard(self._client.ping())

    async def server_facts(self) -> ServerFacts:
        """See SessionStore.server_facts."""
        return await server_facts(self._client)

    async def close(self) -> None:
        """See SessionStore.close."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._client.aclose()

    async def _persist(self, commit: Commit) -> Committed:
        """Commit, waiting out a store that is away: a commit that ran and lost its reply is answered DUP."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._policy.patience
        while True:
            try:
                return await self._commit_once(commit)
            except SessionStoreDown:
                if loop.time() + _COMMIT_PAUSE > give_up:
                    raise
            await asyncio.sleep(_COMMIT_PAUSE)

    async def _commit_once(self, commit: Commit) -> Committed:
        counts = (commit.drafted, commit.accepted, commit.finish, self._lease_ms, self._ttl_ms)
        arguments = (commit.epoch, commit.base, tokens_to_bytes(commit.tokens), commit.text, commit.tail, *counts)
        word, *rest = await self._run(self._commit, commit.session_id, *arguments)
        match word:
            case b"OK" | b"DUP":
                return Committed(int(rest[0]), rest[1] == b"1")
            case b"FENCED":
                raise _fenced(commit.epoch)
            case b"NOSESSION":
                raise _not_found()
            case _:
                raise _diverged(word, commit.base, int(rest[0]))

    def _script(self, source: str) -> Callable[..., Awaitable[Any]]:
        script: Callable[..., Awaitable[Any]] = self._client.register_script(source)
        return script

    async def _run(
        self, script: Callable[..., Awaitable[Any]], session_id: str, *arguments: str | bytes | int
    ) -> _Reply:
        reply: _Reply = await self._guard(script(keys=lua.keys(session_id), args=arguments))
        return reply

    async def _guard(self, answer: Any) -> Any:
        try:
            return await answer
        except (RedisError, OSError) as error:
            raise SessionStoreDown(f"the session store cannot be used: {error}") from error


def _lease(fields: _Reply) -> Lease:
    epoch, n, base, turn, state, params, tail, drafted, accepted = fields
    return Lease(
        epoch=int(epoch),
        n=int(n),
        base=int(base),
        turn=int(turn),
        state=SessionState(state.decode()),
        params=params,
        tail=tail.decode(),
        drafted=int(drafted),
        accepted=int(accepted),
    )


def _open_refusal(word: bytes, rest: _Reply, limit: int) -> SpecdecError:
    match word:
        case b"BUSY":
            return SessionBusy(f"turn {int(rest[0])} of the session is still being generated")
        case b"CONFLICT":
            return SessionBusy(f"the session has {int(rest[0])} turns by now: another writer was first")
        case b"MODEL":
            return FieldInvalid("the session was opened with another model", "model")
        case b"TOOLONG":
            return ContextLengthExceeded(f"the session may hold {limit} tokens and has {int(rest[0])}", "prompt")
        case _:
            return _not_found()


def _diverged(word: bytes, base: int, n: int) -> SessionDiverged:
    why = {
        b"GAP": f"the round starts at token {base}, but the store has only {n}: it lost some",
        b"MISMATCH": f"the round starts at token {base} and differs from what the store has up to {n}",
    }
    return SessionDiverged(why.get(word, f"the store's log does not have the {n} tokens it should"))


def _fenced(epoch: int) -> Fenced:
    return Fenced(f"epoch {epoch} is over: the session has a newer owner, or is gone")


def _not_found() -> SessionNotFound:
    return SessionNotFound("no such session", "session")
