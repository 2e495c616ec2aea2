"""Runs Lua scripts on Redis; every failure of the server or of the connection is raised as SessionStoreDown."""

from collections.abc import Awaitable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.store import lua
from specdec.errors import SessionStoreDown

Reply = list[Any]
ACK_TIMEOUT = 0.5
"""Seconds for which replicas may take to acknowledge a write; less than the timeout of a reply."""

_Answer = TypeVar("_Answer")


class Scripts:
    """Runs scripts on one server, which loads each once."""

    def __init__(self, client: Redis, replicas: int, prefix: str = "") -> None:
        """Args: replicas: how many replicas must acknowledge a durable write; prefix: of every key."""
        self._client = client
        self._replicas = replicas
        self._prefix = prefix
        self._known: dict[str, Any] = {}

    async def run(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session; the reply is a word and what belongs to it."""
        script = self._script(source)
        reply: Reply = await guarded(script(keys=self._keys(session_id), args=arguments))
        return reply

    async def run_durably(self, source: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script and wait until enough replicas have what it wrote.

        Raises:
            SessionStoreDown: also when too few replicas have it; as the write stands, the script must be repeatable.
        """
        if not self._replicas:
            return await self.run(source, session_id, *arguments)
        keys = self._keys(session_id)
        async with self._client.pipeline(transaction=False) as pipe:
            # A pipeline cannot load a script that the server has lost, so the source goes with it.
            pipe.eval(source, len(keys), *keys, *arguments)
            pipe.execute_command("WAIT", self._replicas, round(ACK_TIMEOUT * 1000))
            reply, acknowledged = await guarded(pipe.execute())
        if acknowledged < self._replicas:
            raise SessionStoreDown(f"{acknowledged} of {self._replicas} replicas have acknowledged the write")
        found: Reply = reply
        return found

    def _script(self, source: str) -> Any:
        if source not in self._known:
            self._known[source] = self._client.register_script(source)
        return self._known[source]

    def _keys(self, session_id: str) -> tuple[str, ...]:
        return *lua.keys(session_id, self._prefix), self._prefix + lua.LEASES


async def guarded(answer: Awaitable[_Answer]) -> _Answer:
    """The server's answer; raises SessionStoreDown when there is none."""
    try:
        return await answer
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
