"""Runs Lua scripts on Redis; every failure of the server or of the connection is raised as SessionStoreDown.

Durable writes that are due at once go to the server together, and are acknowledged together: group commit.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
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
"""What the server says of a write that it refuses, also of one in a script, and what callers are told."""

TRIES = 3
"""How often a script is run when its reply does not fit, before the store counts as down."""

ACK_TIMEOUT = 0.5
"""Seconds for which replicas may take to acknowledge a write; less than the timeout of a reply."""
_Command = Sequence[str | bytes | int]
_Answer = TypeVar("_Answer")


@cache
def _whole(name: str) -> tuple[str, str]:
    """A script and its hash, by which it is always run: source that was changed on the way to the server never runs."""
    whole = checked(lua.script(name))
    return whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()


class SharedPipeline:
    """Joins the commands of many callers into pipelines; each caller gets the answer to its own."""

    def __init__(self, client: Redis, replicas: int) -> None:
        """Args: replicas: how many replicas must acknowledge a write."""
        self._client = client
        self._replicas = replicas
        self._due: list[tuple[_Command, asyncio.Future[Any]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, *command: str | bytes | int) -> Any:
        """The server's answer; a caller that is cancelled does not stop its command.

        Raises:
            RedisError: the server refuses this command, or there is no answer.
            SessionStoreDown: too few replicas have what was written; as it stands, it must be safe to repeat.
        """
        answer = asyncio.get_running_loop().create_future()
        self._due.append((command, answer))
        if len(self._due) == 1:  # what other callers want before this task begins goes with it
            sending = asyncio.create_task(self._send())
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return await answer

    async def close(self) -> None:
        """Wait for what was sent."""
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
        """The answer to each command, or the error with which the server refuses it."""
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
    """Runs the scripts of `scripts/` on one server, which loads each once."""

    def __init__(self, client: Redis, replicas: int, prefix: str = "") -> None:
        """Args: replicas: how many replicas must acknowledge a durable write; prefix: of every key."""
        self._client = client
        self._pipeline = SharedPipeline(client, replicas)
        self._prefix = prefix

    async def run(self, script: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session; the reply is a word and what belongs to it."""
        return await self.run_on(script, self._keys(session_id), *arguments)

    async def run_on(self, script: str, keys: Sequence[str], *arguments: str | bytes | float) -> Reply:
        """Run a script on any keys, given with their prefix."""
        return await self._reply(
            script, keys, arguments, lambda sha, sent: self._client.evalsha(sha, len(keys), *keys, *sent)
        )

    async def run_durably(self, script: str, session_id: str, *arguments: str | bytes | float) -> Reply:
        """Run a script on the keys of a session durably, as `run_durably_on` does."""
        return await self.run_durably_on(script, self._keys(session_id), *arguments)

    async def run_durably_on(self, script: str, keys: Sequence[str], *arguments: str | bytes | float) -> Reply:
        """Run a script together with others that are due now, and wait until enough replicas have what they wrote.

        Raises:
            SessionStoreDown: also when too few replicas have it; as the write stands, the script must be repeatable.
        """
        return await self._reply(
            script, keys, arguments, lambda sha, sent: self._pipeline.run("EVALSHA", sha, len(keys), *keys, *sent)
        )

    async def close(self) -> None:
        """Wait for the durable writes that have begun."""
        await self._pipeline.close()

    async def _reply(
        self,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | float],
        evaluate: Callable[..., Any],
    ) -> Reply:
        """The reply of a script, which is run again, as every script may be, when bytes were changed on the way.

        `evaluate` takes the script's hash, and the arguments to send as `sent`.
        """
        for _ in range(TRIES):
            sent = arguments_of(keys, arguments)
            reply = reply_of(await guarded(self._answer(script, partial(evaluate, sent=sent))), sent)
            if reply is not None:
                return reply
            with suppress(RedisError, OSError):  # a connection may be out of step: those that are idle are not kept
                await self._client.connection_pool.disconnect(inuse_connections=False)
        raise SessionStoreDown("bytes were changed on the way to the session store or back")

    async def _answer(self, script: str, evaluate: Callable[[str], Any]) -> Any:
        """What `evaluate` makes of the script's hash, once the server has the script; None when it is no answer."""
        source, sha = _whole(script)
        try:
            with suppress(NoScriptError):
                return await evaluate(sha)
            await self._client.script_load(source)
            return await evaluate(sha)
        except InvalidResponse:  # it breaks the protocol of Redis
            return None

    def keys_of_pass(self, session_ids: Iterable[str]) -> list[str]:
        """The metas of sessions, and the leases of all."""
        return [*(lua.meta_key(each, self._prefix) for each in session_ids), self._prefix + lua.LEASES]

    def _keys(self, session_id: str) -> tuple[str, ...]:
        return *lua.keys(session_id, self._prefix), self._prefix + lua.LEASES


async def guarded(answer: Awaitable[_Answer]) -> _Answer:
    """The server's answer.

    Raises:
        SessionStoreFull: it has no memory to write, or no disk.
        SessionStoreReadOnly: it is a replica.
        SessionStoreDown: there is no answer that can be read.
    """
    try:
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
