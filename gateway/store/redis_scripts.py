"""Runs Lua scripts on Redis; every failure of the server or of the connection is raised as SessionStoreDown."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.store import lua
from gateway.store.checked_scripts import Reply, arguments_of, checked, reply_of
from specdec.errors import SessionStoreDown, SessionStoreFull

ACK_TIMEOUT = 0.5
"""Seconds for which replicas may take to acknowledge a write; less than the timeout of a reply."""
_NO_MEMORY = "command not allowed when used memory >"
"""What the server says of a write over its memory limit, also of one in a script."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Script:
    """A script, always run by its hash: source that was changed on the way to the server never runs."""

    source: str
    sha: str

    @classmethod
    def of(cls, source: str) -> "_Script":
        whole = checked(source)
        return cls(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


class Scripts:
    """Runs scripts on one server, which loads each once."""

    def __init__(self, client: Redis, replicas: int, prefix: str = "") -> None:
        """Args: replicas: how many replicas must acknowledge a durable write; prefix: of every key."""
        self._client = client
        self._replicas = replicas
        self._prefix = prefix
        self._known: dict[str, _Script] = {}

    async def run(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session; the reply is a word and what belongs to it."""
        return await self.run_on(source, self._keys(session_id), *arguments)

    async def run_on(self, source: str, keys: Sequence[str], *arguments: str | bytes | float) -> Reply:
        """Run a script on any keys, given with their prefix."""
        sent = arguments_of(keys, arguments)
        answer = await guarded(self._loaded(source, lambda sha: self._client.evalsha(sha, len(keys), *keys, *sent)))
        return await self._reply(answer, sent)

    async def run_durably(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script and wait until enough replicas have what it wrote.

        Raises:
            SessionStoreDown: also when too few replicas have it; as the write stands, the script must be repeatable.
        """
        if not self._replicas:
            return await self.run(source, session_id, *arguments)
        keys = self._keys(session_id)
        sent = arguments_of(keys, arguments)

        async def written(sha: str) -> Any:
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.evalsha(sha, len(keys), *keys, *sent)
                pipe.execute_command("WAIT", self._replicas, round(ACK_TIMEOUT * 1000))
                return await pipe.execute()

        answer, acknowledged = await guarded(self._loaded(source, written))
        reply = await self._reply(answer, sent)
        if not isinstance(acknowledged, int) or acknowledged < self._replicas:
            raise SessionStoreDown(f"{acknowledged} of {self._replicas} replicas have acknowledged the write")
        return reply

    async def _loaded(self, source: str, evaluate: Callable[[str], Any]) -> Any:
        """What `evaluate` makes of the script's hash, once the server has the script."""
        if source not in self._known:
            self._known[source] = _Script.of(source)
        script = self._known[source]
        try:
            return await evaluate(script.sha)
        except NoScriptError:
            await self._client.script_load(script.source)
            return await evaluate(script.sha)

    async def _reply(self, answer: Any, sent: Sequence[bytes]) -> Reply:
        try:
            return reply_of(answer, sent)
        except SessionStoreDown:
            with suppress(RedisError, OSError):  # a connection may be out of step: those that are idle are not kept
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise

    def _keys(self, session_id: str) -> tuple[str, ...]:
        return *lua.keys(session_id, self._prefix), self._prefix + lua.LEASES


async def guarded(answer: Awaitable[_Answer]) -> _Answer:
    """The server's answer.

    Raises:
        SessionStoreFull: it has no memory to write.
        SessionStoreDown: there is no answer that can be read.
    """
    try:
        return await answer
    except ResponseError as error:
        if _NO_MEMORY in str(error):
            raise SessionStoreFull("the session store is full: it refuses to write") from error
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
    except Exception as error:
        raise SessionStoreDown(f"the answer of the session store cannot be read: {error!r}") from error
