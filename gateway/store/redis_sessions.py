"""Session store on Redis or Valkey: runs the Lua scripts and converts their replies to values or errors."""

import asyncio
import secrets
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

from gateway.store import lua, redis_replies
from gateway.store.redis_client import connect
from gateway.store.redis_memory import MemoryGuard
from gateway.store.redis_replies import understood
from gateway.store.redis_scripts import Scripts, guarded
from gateway.store.values import LapsedTurn, Lease, Opened, RoundCommit, SessionView, TurnView
from gateway.tasks import cancel_and_wait, retry
from specdec.errors import FieldRequired, SpecdecError
from specdec.wire.tokens import tokens_to_bytes

BLOCK = 0.2
"""Block time of one XREAD, in seconds; a stream added meanwhile is read by the next one."""
_PAUSE = 0.2
"""Seconds between two attempts while the server does not answer."""
_QUICK_IDS = 32 * 1024
"""Most token ids that are packed on the event loop, in a millisecond; more on a thread."""
PART = 256
"""Most rounds or leases in one script call, which blocks the server's other clients."""
_HEAD, _FINISH, _NOTE = struct.Struct("<dII"), struct.Struct("<B"), struct.Struct("<I")
"""Binary headers of a round's tokens, finish and note, as COMMIT unpacks them."""
SECRET_BYTES = 32
"""Length in bytes of the secret that derives session ids from idempotency keys."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Time limits, in seconds, and size limits of the store."""

    lease: float = 10.0
    """Duration of a lease; an owner that does not renew it may be replaced."""
    ttl: float = 86_400.0
    """Lifetime of a session after its last use."""
    patience: float = 5.0
    """Time for which a commit is retried while the server does not answer."""
    max_tokens: int = 1_048_576
    """Longest log of a session, in tokens."""
    replicas: int = 0
    """Number of replicas that must acknowledge a durable write."""
    prefix: str = ""
    """Prefix of every key, which separates deployments on one server."""


class RedisSessionStore:
    """SessionStore on one Redis or Valkey server, version 6.2 or newer."""

    def __init__(self, client: Redis, reader: Redis, policy: StorePolicy | None = None) -> None:
        """Args: reader: a separate client for blocking reads and health checks."""
        self._client = client
        self._policy = policy or StorePolicy()
        self._lease_ms = round(self._policy.lease * 1000)
        self._prefix = self._policy.prefix
        self._scripts = Scripts(client, self._policy.replicas, self._prefix)
        self._secret_known: bytes = secrets.token_bytes(SECRET_BYTES)
        self._memory = MemoryGuard(client, self._prefix)
        self._memory_check = MemoryGuard(reader, self._prefix)
        self._streams = StreamWaiter(reader)

    @classmethod
    def at(cls, url: str, policy: StorePolicy | None = None) -> Self:
        """Return a store at a Redis URL; it connects on first use.

        Raises:
            ConfigError: the URL is not a Redis URL.
        """
        return cls(connect(url), connect(url, blocking=BLOCK), policy)

    async def secret(self) -> bytes:
        """Read the secret. If the store has none, write the one that this gateway generated or read before.

        The secret outlives every session id that is derived from it.
        """
        arguments = (self._secret_known, round(3000 * self._policy.ttl))
        reply = await self._scripts.run_on("sessions/secret", [self._prefix + lua.SECRET], *arguments)
        self._secret_known = understood(redis_replies.secret, reply)
        return self._secret_known

    async def create(
        self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None, listed: bool = True
    ) -> None:
        """Create the session's hash and add the session to the tenant's list."""
        await self._memory.check()
        seconds = self._policy.ttl if ttl is None else ttl
        arguments = (tenant, model_fingerprint, round(seconds * 1000))
        understood(redis_replies.done, await self._scripts.run_durably("sessions/create", session_id, *arguments))
        if not listed:
            return
        key = lua.tenant_key(tenant, self._prefix)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {session_id: time.time()}, nx=True)
            pipe.expire(key, round(2 * self._policy.ttl))  # longer than the lifetime of any session in the list
            await guarded(pipe.execute())

    async def delete(self, session_id: str, tenant: str) -> None:
        """Delete the session's keys and its entry in the tenant's list."""
        reply = await self._scripts.run("sessions/delete", session_id, tenant)
        await guarded(self._client.zrem(lua.tenant_key(tenant, self._prefix), session_id))
        understood(redis_replies.done, reply)

    async def list_ids(self, tenant: str, limit: int, after: str = "") -> list[str]:
        """Read the tenant's list, which may include expired sessions."""
        key, start = lua.tenant_key(tenant, self._prefix), 0
        if after:
            rank: Any = await guarded(self._client.zrevrank(key, after))
            if rank is None:
                return []
            start = understood(lambda reply: int(reply[0]), [rank]) + 1
        names: Any = await guarded(self._client.zrevrange(key, start, start + limit - 1))
        return understood(_names, names)

    async def get(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        """Read the session's hash."""
        reply = await self._scripts.run("sessions/get", session_id, tenant, request_id)
        return understood(redis_replies.session_view, reply)

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        """Read the turn's part of the output stream, and its prompt from the log."""
        position = "" if after is None else 2 * after
        reply = await self._scripts.run("sessions/read", session_id, tenant, turn, position)
        return understood(redis_replies.turn_view, reply)

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        """Wait for an entry of the output stream."""
        await self._streams.wait(lua.keys(session_id, self._prefix)[2], f"{turn}-{2 * after}", timeout)

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
        base: int | None = None,
    ) -> Opened:
        """Append the tokens to the log and an opening to the output stream."""
        if not tokens:
            raise FieldRequired("a turn needs at least one token", "prompt")
        await self._memory.check()
        expected = "" if expect_turn is None else expect_turn
        limits = (round(self._policy.ttl * 1000), self._policy.max_tokens * 4)
        ids = await asyncio.to_thread(tokens_to_bytes, tokens) if len(tokens) > _QUICK_IDS else tokens_to_bytes(tokens)
        what = (request_id, expected, ids, params_blob, model_fingerprint, tenant)
        reply = await self._scripts.run_durably(
            "sessions/open", session_id, *what, *limits, digest, int(create), self._lease_ms, base or ""
        )
        return understood(lambda found: redis_replies.opened(found, self._policy.max_tokens), reply)

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        """Write owner, epoch and lease into the session's hash."""
        which = "" if turn is None else turn
        reply = await self._scripts.run("sessions/acquire", session_id, owner, self._lease_ms, which)
        return understood(redis_replies.lease, reply)

    async def commit(self, rounds: Sequence[RoundCommit]) -> Sequence[bool | SpecdecError]:
        """Append the rounds to logs and output streams; retry while the server does not answer."""
        loop = asyncio.get_running_loop()
        give_up, found = loop.time() + self._policy.patience, list[bool | SpecdecError]()
        for part in _parts(rounds):
            found += await retry(partial(self._commit, part), give_up - loop.time())
        return found

    async def renew(self, leases: Sequence[tuple[str, int]]) -> Sequence[bool | SpecdecError]:
        """Extend the leases in the sessions' hashes."""
        found = list[bool | SpecdecError]()
        for part in _parts(leases):
            keys = self._scripts.keys_of_pass(name for name, _ in part)
            packed = struct.pack(f"<{len(part)}d", *(epoch for _, epoch in part))
            reply = await self._scripts.run_on("sessions/renew", keys, self._lease_ms, packed)
            found += understood(partial(redis_replies.renewals, leases=part), reply)
        return found

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        """Set the flag in the session's hash and add an entry to the owner's cancellation stream."""
        arguments = (tenant, turn, self._prefix + lua.CANCELLATIONS, self._lease_ms)
        reply = await self._scripts.run_durably("sessions/cancel", session_id, *arguments)
        return understood(lambda found: redis_replies.was_done(found, b"NOOP"), reply)

    async def release(self, session_id: str, epoch: int) -> bool:
        """Remove owner and lease from the session's hash."""
        reply = await self._scripts.run("sessions/release", session_id, epoch)
        return understood(lambda found: redis_replies.was_done(found, b"FENCED"), reply)

    def cancellations(self, owner: str) -> AsyncIterator[tuple[str, int]]:
        """Read the owner's cancellation stream."""
        return self._streams.cancellations(lua.cancellations_key(owner, self._prefix))

    async def lapsed_turns(self, limit: int) -> list[LapsedTurn]:
        """Read the oldest expired leases from the common index, and look up each in its session."""
        keys = (self._prefix + lua.LEASES,)
        _, *ended = await self._scripts.run_on("sessions/lapsed", keys, limit, self._lease_ms)
        found = [await self._lapsed_turn(name) for name in understood(_names, ended)]
        return [turn for turn in found if turn is not None]

    async def check(self) -> None:
        """Read memory use and disk failures, on connections that no turn uses."""
        await self._memory_check.check(max_age=0.0)

    async def close(self) -> None:
        """Wait for the writes in flight, then close both clients."""
        await self._scripts.close()
        await self._streams.close()
        await self._client.aclose()

    async def _lapsed_turn(self, session_id: str) -> LapsedTurn | None:
        reply = await self._scripts.run("sessions/lapsed_turn", session_id)
        return understood(lambda found: redis_replies.lapsed_turn(found, session_id), reply)

    async def _commit(self, rounds: Sequence[RoundCommit]) -> list[bool | SpecdecError]:
        keys = self._scripts.keys_of_pass(each.session_id for each in rounds)
        packed = b"".join(map(_packed, rounds))
        reply = await self._scripts.run_durably_on("sessions/commit", keys, self._lease_ms, packed)
        return understood(partial(redis_replies.outcomes, rounds=rounds), reply)


def _parts(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[start : start + PART] for start in range(0, len(items), PART))


def _packed(commit: RoundCommit) -> bytes:
    """Pack a round into the binary form that COMMIT reads."""
    tokens, finish, note = tokens_to_bytes(commit.tokens), commit.finish.encode(), commit.note
    head = _HEAD.pack(commit.epoch, commit.base, len(tokens))
    return b"".join((head, tokens, _FINISH.pack(len(finish)), finish, _NOTE.pack(len(note)), note))


def _names(found: list[bytes]) -> list[str]:
    return [name.decode() for name in found]


class StreamWaiter:
    """Waits for entries of Redis streams. It reads only while a caller waits."""

    def __init__(self, client: Redis) -> None:
        """Args: client: a separate client, because a blocking read occupies its connection."""
        self._client = client
        self._waiting: dict[str, dict[asyncio.Future[None], str]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def wait(self, key: str, after: str, timeout: float) -> None:
        """Return when the stream at `key` has an entry with an id above `after`, or after `timeout` seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[future] = after
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await future
        finally:
            waiting = self._waiting[key]
            del waiting[future]
            if not waiting:
                del self._waiting[key]

    async def cancellations(self, key: str) -> AsyncGenerator[tuple[str, int]]:
        """Yield session id and turn of each entry of an owner's cancellation stream, forever."""
        last = b"0-0"
        while True:
            try:
                entries = _entries(await self._client.xread({key: last}, block=round(BLOCK * 1000)))
                found = [(fields[b"s"].decode(), int(fields[b"n"])) for _, fields in entries]
            except Exception:  # noqa: BLE001 - the server is away, or its answer cannot be read
                await asyncio.sleep(_PAUSE)
                continue
            if entries:
                last = entries[-1][0]
            for each in found:
                yield each

    async def close(self) -> None:
        """Stop reading and close the connection."""
        if self._reader is not None:
            await cancel_and_wait(self._reader)
        await self._client.aclose()

    async def _read(self) -> None:
        while self._waiting:
            oldest: Any = {key: min(afters.values(), key=_order) for key, afters in self._waiting.items()}
            try:
                self._take(await self._client.xread(oldest, count=1, block=round(BLOCK * 1000)))
            except Exception:  # noqa: BLE001 - the server is away, or its answer cannot be read
                await asyncio.sleep(_PAUSE)

    def _take(self, found: Any) -> None:
        """Wake the callers that wait for the entries found."""
        for key, entries in found.items() if isinstance(found, dict) else found or ():
            first = entries[0][0]  # RESP 3 puts the list of entries into another list
            self._wake(key.decode(), (first if isinstance(first, bytes) else first[0]).decode())

    def _wake(self, key: str, entry: str) -> None:
        for future, after in self._waiting.get(key, {}).items():
            if not future.done() and _order(after) < _order(entry):
                future.set_result(None)


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of the only stream in an answer to XREAD."""
    for _, entries in found.items() if isinstance(found, dict) else found or ():
        first = entries[0]
        return list(first if isinstance(first, list) else entries)  # RESP 3 puts the list into another list
    return []


def _order(entry_id: str) -> tuple[int, int]:
    turn, _, position = entry_id.partition("-")
    return int(turn), int(position)
