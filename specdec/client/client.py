"""The client: generations and other calls over gRPC, at any of several gateways that answers."""

import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Self, TypeVar

import grpc

from specdec.client import calls
from specdec.client.base_client import BaseClient
from specdec.client.calls import ModelLimits, StoredSession, StoredSessions, TokenizedPrompt, UnaryCall
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import Event, GenerationResult, PromptRequest
from specdec.client.reading import ReadPosition
from specdec.client.requests import ChatOptions, Prompt

T = TypeVar("T")


class Client(BaseClient[grpc.Channel]):
    """Connections to gateways that share a session store. The context manager closes them.

    Every method raises the gateway's error, one of `specdec.errors`: a RequestError for a mistake of the caller. A call
    that breaks is repeated at the next gateway, as `retries` says.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all streams and close the connections. Thread-safe."""
        for channel in self._channels:
            channel.close()

    def generate(self, request: PromptRequest | str) -> GenerationResult:
        """Return the whole output of a request or prompt. Raises the errors of `stream`."""
        return collect(self.stream(request))

    def stream(self, request: PromptRequest | str) -> Iterator[Event]:
        """Yield the events of a request or prompt. Each token arrives exactly once, even if gateways fail on the way.

        Closing the iterator early abandons the generation, which ends after the gateway's grace period; `cancel` ends
        it at once.

        Raises:
            RequestError: the gateway refused the request.
            DeadlineExceeded: the timeout has passed.
            SpecdecError: too many calls in a row broke; the error of the last one.
        """
        reading, deadline = ReadPosition(request, self._metadata), time.monotonic() + self._timeout
        for channel in cycle(self._channels):
            try:
                for message in reading.begin(channel, deadline):
                    if (event := reading.take(message)) is not None:
                        yield event
                return
            except grpc.RpcError as error:
                pause = self._retries.after(error, reading.failures)
            time.sleep(pause)

    def create_session(
        self, model: str = "", user: str = "", ttl: float | None = None, request_id: str = ""
    ) -> StoredSession:
        """Create a session. `ttl` is its lifetime after the last use, in seconds; None takes the server's."""
        return self._call(calls.create_session(model, user, ttl, request_id))

    def session(self, session: str, user: str = "") -> StoredSession:
        """Return a session. Raises SessionNotFound."""
        return self._call(calls.get_session(session, user))

    def list_sessions(self, user: str, page_size: int = 0, page_token: str = "") -> StoredSessions:
        """Return a page of a user's sessions; 0 takes the server's page size."""
        return self._call(calls.list_sessions(user, page_size, page_token))

    def delete_session(self, session: str, user: str = "") -> None:
        """Delete a session. Raises SessionNotFound."""
        self._call(calls.delete_session(session, user))

    def models(self) -> tuple[ModelLimits, ...]:
        """Return the models that are served."""
        return self._call(calls.list_models())

    def model(self, model: str = "") -> ModelLimits:
        """Return a model; empty for the only one. Raises ModelNotFound."""
        return self._call(calls.get_model(model))

    def tokenize(
        self, prompt: Prompt, model: str = "", chat: bool = False, chat_options: ChatOptions | None = None
    ) -> TokenizedPrompt:
        """Return the token ids of a text or of a conversation, without generating."""
        return self._call(calls.tokenize(prompt, model, chat, chat_options))

    def detokenize(self, token_ids: Sequence[int], model: str = "") -> str:
        """Return the text of token ids."""
        return self._call(calls.detokenize(token_ids, model))

    def cancel(self, generation: str, user: str = "") -> bool:
        """End a generation, named by its StartedEvent. Return False if it had ended by itself."""
        return self._call(calls.cancel(generation, user))

    @staticmethod
    def _open(connection: GatewayConnection) -> grpc.Channel:
        return connection.open()

    def _call(self, call: UnaryCall[T]) -> T:
        deadline = time.monotonic() + self._timeout
        failures = 0
        while True:
            channel = self._channels[failures % len(self._channels)]
            failures += 1
            try:
                method, left = call.method(channel), max(0.0, deadline - time.monotonic())
                return call.read(method(call.request, timeout=left, metadata=self._metadata))
            except grpc.RpcError as error:
                pause = self._retries.after(error, failures)
            time.sleep(pause)
