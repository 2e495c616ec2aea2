"""Runs Lua scripts on Redis. Every failure of the server or the connection raises SessionStoreDown.

Concurrent scripts are sent together, and durable writes are acknowledged together (group commit).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from gateway.store import lua
from gateway.store.checked_scripts import Reply, arguments_of, checked, reply_of
from specdec.errors import SessionStoreDown, SessionStoreFull, SessionStoreReadOnly

_REFUSALS: Sequence[tuple[str, type[SessionStoreDown], str]] = (
    ("command not allowed when used memory >", SessionStoreFull, "the session store is full: it refuses to write"),
    (
        "MISCONF",
        SessionStoreFull,
        "the session store cannot write to its disk, which is full or fails, and takes no new work",
    ),
    ("read only replica", SessionStoreReadOnly, "the session store is a replica, which takes no writes"),
)
"""Refused writes: a part of the server's message, the error to raise, and its message for callers."""

TRIES = 3
"""Number of attempts with a corrupted reply, after which the store counts as down."""

ACK_TIMEOUT = 0.5
"""Timeout in seconds of the replicas' acknowledgement; less than the reply timeout."""
LONGEST = 10.0
"""Longest time in seconds of an operation, all attempts together: the client makes several, each with several dials."""
_Command = Sequence[str | bytes | int]
_Answer = TypeVar("_Answer")


@cache
def _whole(name: str) -> tuple[str, str]:
    """Return a script and its hash. Scripts run by hash only, so source corrupted in transit never runs."""
    whole = checked(lua.script(name))
    return whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()


class SharedPipeline:
    """Batches the commands of many callers into pipelines; each caller gets the answer to its own command."""

    def __init__(self, client: Redis, replicas: int) -> None:
        """Args: replicas: number of replicas that must acknowledge a write."""
        self._client = client
        self._replicas = replicas
        self._due: list[tuple[_Command, asyncio.Future[Any]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, *command: str | bytes | int) -> Any:
        """Run a command and return the server's answer. Cancelling the caller does not stop the command.

        Raises:
            RedisError: the server refuses the command or does not answer.
            SessionStoreDown: too few replicas acknowledged the write. The write stands and must be safe to repeat.
        """
        answer = asyncio.get_running_loop().create_future()
        self._due.append((command, answer))
        if len(self._due) == 1:  # commands that arrive before this task starts join the batch
            sending = asyncio.create_task(self._send())
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return await answer

    async def close(self) -> None:
        """Wait for the commands in flight."""
        await asyncio.gather(*self._sending)

    async def _send(self) -> None:
        due, self._due = self._due, []
        answers: Sequence[Any]
        try:
            answers = await self._answers([command for command, _ in due])
        except Exception as error:  # noqa: BLE001 - every caller gets it
            answers = [error] * len(due)
        for (_, future), answer in zip(due, answers, strict=True):
            if future.done():  # its caller was cancelled
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _answers(self, commands: Sequence[_Command]) -> Sequence[Any]:
        """Return the answer to each command, or the error with which the server refuses it."""
        async with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            if not self._replicas:
                return await pipe.execute(raise_on_error=False)
            pipe.execute_command("WAIT", self._replicas, round(ACK_TIMEOUT * 1000))
            *answers, acknowledged = await pipe.execute(raise_on_error=False)
        if isinstance(acknowledged, Exception):
            raise acknowledged
        if int(acknowledged) < self._replicas:
            raise SessionStoreDown(f"{acknowledged} of {self._replicas} replicas have acknowledged the write")
        return answers


class Scripts:
    """Runs the scripts in `scripts/` on one server, which loads each once."""

    def __init__(self, client: Redis, replicas: int, prefix: str = "") -> None:
        """Args: replicas: number of replicas that must acknowledge a durable write; prefix: prefix of every key."""
        self._client = client
        self._pipeline = SharedPipeline(client, replicas=0)
        self._durable = SharedPipeline(client, replicas)
        self._prefix = prefix

    async def run(self, script: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session, as `run_on` does."""
        return await self.run_on(script, self._keys(session_id), *arguments)

    async def run_on(self, script: str, keys: Sequence[str], *arguments: str | bytes | float) -> Reply:
        """Run a script on any keys, which include the prefix, and return its reply."""
        return await self._reply(self._pipeline, script, keys, arguments)

    async def run_durably(self, script: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session durably, as `run_durably_on` does."""
        return await self.run_durably_on(script, self._keys(session_id), *arguments)

    async def run_durably_on(self, script: str, keys: Sequence[str], *arguments: str | bytes | float) -> Reply:
        """Run a script like `run_on`, and wait until enough replicas acknowledge its writes.

        Raises:
            SessionStoreDown: also if too few replicas acknowledged. The write stands, so the script must be repeatable.
        """
        return await self._reply(self._durable, script, keys, arguments)

    async def close(self) -> None:
        """Wait for the scripts in flight."""
        await self._pipeline.close()
        await self._durable.close()

    async def _reply(
        self, pipeline: SharedPipeline, script: str, keys: Sequence[str], arguments: Sequence[str | bytes | float]
    ) -> Reply:
        """Run a script and return its reply. A corrupted reply runs the script again; every script is repeatable."""
        for _ in range(TRIES):
            sent = arguments_of(keys, arguments)
            reply = reply_of(await guarded(self._answer(pipeline, script, (len(keys), *keys, *sent))), sent)
            if reply is not None:
                return reply
            with suppress(RedisError, OSError):  # a connection may be desynchronized: drop the idle ones
                await self._client.connection_pool.disconnect(inuse_connections=False)
        raise SessionStoreDown("bytes were changed on the way to the session store or back")

    async def _answer(self, pipeline: SharedPipeline, script: str, call: _Command) -> Any:
        """Run a script by its hash, loading it if needed; return None if the answer is malformed.

        `call` is the number of keys, the keys and the arguments.
        """
        source, sha = _whole(script)
        try:
            with suppress(NoScriptError):
                return await pipeline.run("EVALSHA", sha, *call)
            await self._client.script_load(source)
            return await pipeline.run("EVALSHA", sha, *call)
        except InvalidResponse:  # it breaks the protocol of Redis
            return None

    def keys_of_pass(self, session_ids: Iterable[str]) -> list[str]:
        """Return the meta keys of the sessions, followed by the key of all leases."""
        return [*(lua.meta_key(each, self._prefix) for each in session_ids), self._prefix + lua.LEASES]

    def _keys(self, session_id: str) -> tuple[str, ...]:
        return *lua.keys(session_id, self._prefix), self._prefix + lua.LEASES


async def guarded(answer: Awaitable[_Answer]) -> _Answer:
    """Await and return the server's answer for at most LONGEST, with its errors converted.

    Raises:
        SessionStoreFull: the server has no memory for the write, or cannot write to its disk.
        SessionStoreReadOnly: the server is a replica.
        SessionStoreDown: there is no answer, or it cannot be read.
    """
    try:
        async with asyncio.timeout(LONGEST):
            return await answer
    except SessionStoreDown:
        raise
    except ResponseError as error:
        for said, kind, message in _REFUSALS:
            if said in str(error):
                raise kind(message) from error
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the session store cannot be used: {error}") from error
    except Exception as error:
        raise SessionStoreDown(f"the answer of the session store cannot be read: {error!r}") from error
