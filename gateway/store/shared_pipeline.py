"""Group commit: writes that are due at once go to the server together, and are acknowledged together."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from specdec.errors import SessionStoreDown

ACK_TIMEOUT = 0.5
"""Seconds for which replicas may take to acknowledge a write; less than the timeout of a reply."""

_Command = Sequence[str | bytes | int]


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
