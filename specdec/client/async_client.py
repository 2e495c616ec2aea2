"""The client for asyncio: the methods of `Client` as coroutines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import cycle
from typing import Self, TypeVar

import grpc.aio

from specdec.client import calls
from specdec.client.base_client import BaseClient
from specdec.client.calls import ModelLimits, StoredSession, StoredSessions, TokenizedPrompt, UnaryCall
from specdec.client.collect import Collector
from specdec.client.connection import GatewayConnection
from specdec.client.events import Event, GenerationResult, PromptRequest
from specdec.client.reading import ReadPosition
from specdec.client.requests import ChatOptions, Prompt

T = TypeVar("T")


class AsyncClient(BaseClient[grpc.aio.Channel]):
    """Connections to gateways that share a session store. The context manager closes them.

    It is created inside a running event loop, and used in that loop only. The methods are those of `Client`, with the
    same errors.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all streams and close the connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def generate(self, request: PromptRequest | str) -> GenerationResult:
        """Return the whole output of a request or prompt. Raises the errors of `stream`."""
        collector = Collector()
        async with aclosing(self.stream(request)) as events:
            async for event in events:
                collector.take(event)
        return collector.result()

    async def stream(self, request: PromptRequest | str) -> AsyncGenerator[Event]:
        """Yield the events of a request or prompt. Each token arrives exactly once, as from `Client.stream`."""
        reading, deadline = ReadPosition(request, self._metadata), time.monotonic() + self._timeout
        for channel in cycle(self._channels):
            call = reading.begin(channel, deadline)
            try:
                async for message in call:
                    if (event := reading.take(message)) is not None:
                        yield event
                return
            except grpc.RpcError as error:
                pause = self._retries.after(error, reading.failures)
            finally:
                call.cancel()
            await asyncio.sleep(pause)

    async def create_session(
        self, model: str = "", user: str = "", ttl: float | None = None, request_id: str = ""
    ) -> StoredSession:
        """Create a session. `ttl` is its lifetime after the last use, in seconds; None takes the server's."""
        return await self._call(calls.create_session(model, user, ttl, request_id))

    async def session(self, session: str, user: str = "") -> StoredSession:
        """Return a session. Raises SessionNotFound."""
        return await self._call(calls.get_session(session, user))

    async def list_sessions(self, user: str, page_size: int = 0, page_token: str = "") -> StoredSessions:
        """Return a page of a user's sessions; 0 takes the server's page size."""
        return await self._call(calls.list_sessions(user, page_size, page_token))

    async def delete_session(self, session: str, user: str = "") -> None:
        """Delete a session. Raises SessionNotFound."""
        await self._call(calls.delete_session(session, user))

    async def models(self) -> tuple[ModelLimits, ...]:
        """Return the models that are served."""
        return await self._call(calls.list_models())

    async def model(self, model: str = "") -> ModelLimits:
        """Return a model; empty for the only one. Raises ModelNotFound."""
        return await self._call(calls.get_model(model))

    async def tokenize(
        self, prompt: Prompt, model: str = "", chat: bool = False, chat_options: ChatOptions | None = None
    ) -> TokenizedPrompt:
        """Return the token ids of a text or of a conversation, without generating."""
        return await self._call(calls.tokenize(prompt, model, chat, chat_options))

    async def detokenize(self, token_ids: Sequence[int], model: str = "") -> str:
        """Return the text of token ids."""
        return await self._call(calls.detokenize(token_ids, model))

    async def cancel(self, generation: str, user: str = "") -> bool:
        """End a generation, named by its StartedEvent. Return False if it had ended by itself."""
        return await self._call(calls.cancel(generation, user))

    @staticmethod
    def _open(connection: GatewayConnection) -> grpc.aio.Channel:
        return connection.open_async()

    async def _call(self, call: UnaryCall[T]) -> T:
        deadline = time.monotonic() + self._timeout
        failures = 0
        while True:
            channel = self._channels[failures % len(self._channels)]
            failures += 1
            try:
                method, left = call.method(channel), max(0.0, deadline - time.monotonic())
                return call.read(await method(call.request, timeout=left, metadata=self._metadata))
            except grpc.RpcError as error:
                pause = self._retries.after(error, failures)
            await asyncio.sleep(pause)
