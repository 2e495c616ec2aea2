"""Runs Lua scripts on the session store: every failure of the server or the way to it is SessionStoreDown."""

from collections.abc import Awaitable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from gateway.store import lua
from specdec.errors import SessionStoreDown

Reply = list[Any]
ACK_TIMEOUT = 0.5
"""Seconds replicas have to acknowledge a write; less than an answer may take."""

_Answer = TypeVar("_Answer")


class Scripts:
    """The scripts of one server."""

    def __init__(self, client: Redis, replicas: int) -> None:
        """Args: replicas: how many must have a durable write before it counts."""
        self._client = client
        self._replicas = replicas
        self._known: dict[str, Any] = {}

    async def run(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """The reply of a script on the keys of a session."""
        script = self._script(source)
        reply: Reply = await guarded(script(keys=_keys(session_id), args=arguments))
        return reply

    async def run_durably(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """The same, once enough replicas have what it wrote.

        Raises:
            SessionStoreDown: also when too few have it; the write stands, so the script must be one that may run again.
        """
        if not self._replicas:
            return await self.run(source, session_id, *arguments)
        try:
            return await guarded(self._and_wait(source, session_id, arguments))
        except _Forgotten:
            await guarded(self._client.script_load(source))
            return await guarded(self._and_wait(source, session_id, arguments))

    async def _and_wait(self, source: str, session_id: str, arguments: tuple[str | bytes | float, ...]) -> Reply:
        keys = _keys(session_id)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.evalsha(self._script(source).sha, len(keys), *keys, *arguments)
            pipe.execute_command("WAIT", self._replicas, round(ACK_TIMEOUT * 1000))
            try:
                reply, acknowledged = await pipe.execute()
            except NoScriptError as error:
                raise _Forgotten("the server lost its scripts") from error
        if acknowledged < self._replicas:
            raise SessionStoreDown(f"{acknowledged} of {self._replicas} replicas have acknowledged the write")
        found: Reply = reply
        return found

    def _script(self, source: str) -> Any:
        if source not in self._known:
            self._known[source] = self._client.register_script(source)
        return self._known[source]


def _keys(session_id: str) -> tuple[str, ...]:
    return *lua.keys(session_id), lua.LEASES


class _Forgotten(SessionStoreDown):
    """The server restarted without its scripts."""


async def guarded(answer: Awaitable[_Answer]) -> _Answer:
    """What the server answers; raises SessionStoreDown when it does not."""
    try:
        return await answer
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
