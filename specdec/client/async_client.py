"""The client for asyncio: the methods of `Client` as coroutines."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import cycle
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc.aio

from specdec.client import calls
from specdec.client.calls import ModelLimits, StoredSession, StoredSessions, TokenizedPrompt, UnaryCall
from specdec.client.collect import Collector
from specdec.client.connection import GatewayConnection
from specdec.client.events import Event, GenerationResult, PromptRequest
from specdec.client.reading import ReadPosition, Retries
from specdec.client.requests import ChatOptions, Prompt
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc

T = TypeVar("T")


class AsyncClient:
    """Connections to gateways that share a session store, for one event loop. The context manager closes them.

    The methods are those of `Client`, with the same errors.
    """

    def __init__(
        self,
        *addresses: str,
        api_key: str = "",
        ca: Path | None = None,
        timeout: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        """Create the client inside a running event loop. It connects on the first request.

        Args:
            addresses: gRPC addresses of the gateways, `host:port`; defaults to 127.0.0.1:50051.
            api_key: API key sent with every call; empty for none.
            ca: PEM file of the authorities that sign the gateways' certificates; None for plaintext.
            timeout: timeout of one generation, in seconds, over all its calls; also that of any other call.

        Raises:
            ConfigError: the key is malformed, or the file cannot be read.
        """
        connections = [GatewayConnection(each, api_key, ca) for each in addresses or ("127.0.0.1:50051",)]
        self._channels = [each.open_async() for each in connections]
        self._metadata = connections[0].metadata
        self._timeout = timeout
        self._retries = retries or Retries()

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
        """Yield the events of a request or prompt, as `Client.stream` does."""
        reading, deadline = ReadPosition(request, self._metadata), time.monotonic() + self._timeout
        for channel in cycle(self._channels):
            call = _stream(channel, reading, deadline)
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


def _stream(channel: grpc.aio.Channel, reading: ReadPosition, deadline: float) -> Any:
    """Begin the next call of a generation."""
    stub, request = gateway_pb2_grpc.GenerationServiceStub(channel), reading.next_call()
    method: Any = stub.StreamGenerate if isinstance(request, pb.StreamGenerateRequest) else stub.ResumeGeneration
    return method(request, timeout=max(0.0, deadline - time.monotonic()), metadata=reading.metadata)
