"""The session store on Redis: scripts out, typed values or typed errors back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from redis.asyncio import Redis

from gateway.store import lua, lua_sessions, redis_replies
from gateway.store.orphans import Orphan
from gateway.store.redis_client import ServerFacts, connect, server_facts
from gateway.store.redis_index import TenantIndex
from gateway.store.redis_room import Room
from gateway.store.redis_scripts import Scripts, guarded
from gateway.store.redis_tail import BLOCK, StreamTail
from gateway.store.retry import patiently
from gateway.store.sessions import Commit, Committed, Lease, Opened, SessionState, SessionView, TurnView
from specdec.errors import FieldRequired, SessionHeld, TurnOver
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """How long things last, in seconds, how long a log may grow, and how many replicas must have a write."""

    lease: float = 10.0
    """An owner that is silent for longer may be replaced."""
    ttl: float = 86_400.0
    """A session nobody touches for longer is gone."""
    patience: float = 5.0
    """A commit is tried for this long while the store is away; the stream waits with it."""
    max_tokens: int = 1_048_576
    replicas: int = 0


class RedisSessionStore:
    """A SessionStore (see gateway.sessions) on one Redis or Valkey, 6.2 or newer."""

    def __init__(self, client: Redis, reader: Redis, policy: StorePolicy | None = None) -> None:
        """Args: reader: a client for blocking reads."""
        self._client = client
        self._policy = policy or StorePolicy()
        self._lease_ms = round(self._policy.lease * 1000)
        self._writes: set[asyncio.Task[Committed]] = set()
        self._scripts = Scripts(client, self._policy.replicas)
        self._index = TenantIndex(client, 2 * self._policy.ttl)
        self._due = client.register_script(lua_sessions.DUE)
        self._room = Room(client)
        self._tail = StreamTail(reader)

    @classmethod
    def at(cls, url: str, policy: StorePolicy | None = None) -> Self:
        """The store at a Redis URL; it connects on first use.

        Raises:
            ConfigError: not a Redis URL.
        """
        return cls(connect(url), connect(url, blocking=BLOCK), policy)

    async def create(self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None) -> None:
        """See SessionStore.create."""
        await self._room.check()
        seconds = self._policy.ttl if ttl is None else ttl
        arguments = (tenant, model_fingerprint, round(seconds * 1000))
        word, *_ = await self._scripts.run_durably(lua_sessions.CREATE, session_id, *arguments)
        if word != b"OK":
            raise redis_replies.missing(word)
        await self._index.add(tenant, session_id)

    async def delete(self, session_id: str, tenant: str) -> None:
        """See SessionStore.delete."""
        word, *_ = await self._scripts.run(lua_sessions.DELETE, session_id, tenant)
        await self._index.remove(tenant, session_id)
        if word != b"OK":
            raise redis_replies.missing(word)

    async def named(self, tenant: str, limit: int, after: str = "") -> list[str]:
        """See SessionStore.named."""
        return await self._index.page(tenant, limit, after)

    async def look(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        """See SessionStore.look."""
        word, *rest = await self._scripts.run(lua_sessions.LOOK, session_id, tenant, request_id)
        if word != b"OK":
            raise redis_replies.missing(word)
        return redis_replies.session_view(rest)

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        """See SessionStore.read."""
        position = "" if after is None else 2 * after
        word, *rest = await self._scripts.run(lua_sessions.READ, session_id, tenant, turn, position)
        if word != b"OK":
            raise redis_replies.missing(word)
        return redis_replies.turn_view(rest)

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        """See SessionStore.wait."""
        await self._tail.wait(lua.keys(session_id)[2], f"{turn}-{2 * after}", timeout)

    async def open(  # noqa: PLR0913  # one script, its arguments
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
    ) -> Opened:
        """See SessionStore.open."""
        if not tokens:
            raise FieldRequired("a turn needs at least one token", "prompt")
        await self._room.check()
        expected = "" if expect_turn is None else expect_turn
        limits = (round(self._policy.ttl * 1000), self._policy.max_tokens * 4)
        what = (request_id, expected, tokens_to_bytes(tokens), params_blob, model_fingerprint, tenant)
        word, *rest = await self._scripts.run_durably(
            lua.OPEN, session_id, *what, *limits, digest, int(create), self._lease_ms
        )
        match word:
            case b"OK":
                return Opened(int(rest[0]), int(rest[1]))
            case b"DUP":
                return Opened(int(rest[0]), int(rest[1]), SessionState(rest[2].decode()), repeated=True)
        raise redis_replies.open_refusal(word, rest, self._policy.max_tokens)

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        """See SessionStore.acquire."""
        which = "" if turn is None else turn
        word, *rest = await self._scripts.run(lua.ACQUIRE, session_id, owner, self._lease_ms, which)
        match word:
            case b"OK":
                return Lease(epoch=int(rest[0]), n=int(rest[1]))
            case b"OVER":
                raise TurnOver(f"turn {int(rest[0])} is the last, and done or not the one asked for")
            case b"HELD":
                left = int(rest[1]) / 1000
                raise SessionHeld(f"another gateway has the session for {left:.1f} s more", left)
        raise redis_replies.missing(word)

    async def commit(self, commit: Commit) -> Committed:
        """See SessionStore.commit."""
        write = asyncio.create_task(patiently(lambda: self._commit(commit), self._policy.patience))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await asyncio.shield(write)

    async def renew(self, session_id: str, epoch: int) -> bool:
        """See SessionStore.renew."""
        word, *rest = await self._scripts.run(lua.RENEW, session_id, epoch, self._lease_ms)
        if word != b"OK":
            raise redis_replies.fenced(epoch)
        return bool(rest[0] == b"1")

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """See SessionStore.cancel."""
        word, *_ = await self._scripts.run_durably(lua.CANCEL, session_id, tenant, turn)
        if word == b"DENIED":
            raise redis_replies.not_found()
        return bool(word == b"OK")

    async def release(self, session_id: str, epoch: int) -> bool:
        """See SessionStore.release."""
        word, *_ = await self._scripts.run(lua.RELEASE, session_id, epoch)
        return bool(word == b"OK")

    async def cancelled(self, session_id: str, turn: int) -> None:
        """See SessionStore.cancelled."""
        await self._tail.wait(lua.keys(session_id)[4], f"{turn}-0", None)

    async def orphans(self, limit: int) -> list[Orphan]:
        """See SessionStore.orphans."""
        due: Any = await guarded(self._due(keys=[lua.LEASES], args=[limit, self._lease_ms]))
        found = [await self._orphan(name.decode()) for name in due]
        return [orphan for orphan in found if orphan is not None]

    async def tokens(self, session_id: str) -> list[int]:
        """See SessionStore.tokens."""
        log: Any = await guarded(self._client.get(lua.keys(session_id)[1]))
        if log is None:
            raise redis_replies.not_found()
        return tokens_from_bytes(log)

    async def ping(self) -> None:
        """See SessionStore.ping."""
        await guarded(self._client.ping())

    async def server_facts(self) -> ServerFacts:
        """See SessionStore.server_facts."""
        return await server_facts(self._client)

    async def close(self) -> None:
        """See SessionStore.close."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._tail.close()
        await self._client.aclose()

    async def _orphan(self, session_id: str) -> Orphan | None:
        word, *rest = await self._scripts.run(lua_sessions.LAPSED, session_id)
        if word == b"OK":
            return Orphan(session_id, rest[0].decode(), int(rest[1]), int(rest[2]) / 1000)
        return None

    async def _commit(self, commit: Commit) -> Committed:
        what = (commit.epoch, commit.base, tokens_to_bytes(commit.tokens), commit.finish, self._lease_ms, commit.note)
        word, *rest = await self._scripts.run_durably(lua.COMMIT, commit.session_id, *what)
        match word:
            case b"OK" | b"DUP":
                return Committed(int(rest[0]), rest[1] == b"1")
            case b"FENCED":
                raise redis_replies.fenced(commit.epoch)
            case b"NOSESSION":
                raise redis_replies.not_found()
        raise redis_replies.diverged(word, commit.base, int(rest[0]))
