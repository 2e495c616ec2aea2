"""The client: one generation at a time over gRPC, from any of several gateways that answers."""

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Self

import grpc

from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import Event, GenerationResult, PromptRequest, RoundEvent, StartedEvent
from specdec.client.messages import event_from_pb, request_to_pb
from specdec.errors import DeadlineExceeded, InternalError, NoVerifier, QueueFull, SpecdecError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc
from specdec.serving.rpc.status import from_rpc_error


@dataclass(frozen=True, slots=True)
class Retries:
    """Retry policy for calls that break before they deliver a new token."""

    attempts: int = 6
    """Maximum number of calls that may break in a row."""
    first: float = 0.1
    """Delay before the second call, in seconds. It doubles for each further call; jitter shortens it by up to half."""
    longest: float = 5.0
    """Maximum delay before a call, in seconds."""

    def pause(self, failures: int) -> float:
        """Return the delay, in seconds, after `failures` broken calls in a row."""
        return float(min(self.longest, self.first * 2 ** (failures - 1)) * random.uniform(0.5, 1.0))


class Client:
    """Connections to gateways that share a session store. The context manager closes them."""

    def __init__(
        self,
        *addresses: str,
        api_key: str = "",
        ca: Path | None = None,
        timeout: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        """Create the client. It connects on the first request.

        Args:
            addresses: gRPC addresses of the gateways, `host:port`; defaults to 127.0.0.1:50051.
            api_key: API key sent with every call; empty for none.
            ca: PEM file of the authorities that sign the gateways' certificates; None for plaintext.
            timeout: timeout of one generation, in seconds, over all its calls.

        Raises:
            ConfigError: the key is malformed, or the file cannot be read.
        """
        connections = [GatewayConnection(each, api_key, ca) for each in addresses or ("127.0.0.1:50051",)]
        self._channels = [each.open() for each in connections]
        self._metadata = connections[0].metadata
        self._timeout = timeout
        self._retries = retries or Retries()

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

        Closing the iterator early abandons the generation, which ends after the gateway's grace period.

        Raises:
            RequestError: the gateway refused the request.
            DeadlineExceeded: the timeout has passed.
            SpecdecError: too many calls in a row broke; the error of the last one.
        """
        asked = request_to_pb(PromptRequest(request) if isinstance(request, str) else request)
        asked.request_id = uuid.uuid4().hex  # prevents a second generation if a response is lost
        reading = _Reading(asked, self._metadata, time.monotonic() + self._timeout)
        for channel in cycle(self._channels):
            try:
                yield from reading.events(gateway_pb2_grpc.GenerationServiceStub(channel))
                return
            except grpc.RpcError as error:
                failure = _failure(error)
                if failure is None or reading.failures >= self._retries.attempts:
                    raise (failure or _final(error)) from error
            time.sleep(self._retries.pause(reading.failures))


class _Reading:
    """Read position of one generation."""

    def __init__(self, request: pb.GenerateRequest, metadata: tuple[tuple[str, str], ...], deadline: float) -> None:
        self._request = request
        self._metadata = metadata
        self._deadline = deadline
        self._generation = ""
        """Generation id, once it has begun."""
        self._received = 0
        """Number of output tokens read so far."""
        self.failures = 0
        """Number of broken calls since the last token."""

    def events(self, stub: gateway_pb2_grpc.GenerationServiceStub) -> Iterator[Event]:
        """Yield the unread events. Raises RpcError."""
        left = max(0.0, self._deadline - time.monotonic())
        self.failures += 1
        for message in self._resume(stub, left) if self._generation else self._begin(stub, left):
            event = event_from_pb(message)
            match event:
                case StartedEvent() if self._generation:
                    continue
                case StartedEvent():
                    self._generation = event.id
                case RoundEvent():
                    self._received += len(event.tokens)
                    self.failures = 1
            yield event

    def _begin(
        self, stub: gateway_pb2_grpc.GenerationServiceStub, timeout: float
    ) -> Iterator[pb.StreamGenerateResponse]:
        request = pb.StreamGenerateRequest(request=self._request, resumable=True)
        return stub.StreamGenerate(request, timeout=timeout, metadata=self._metadata)

    def _resume(
        self, stub: gateway_pb2_grpc.GenerationServiceStub, timeout: float
    ) -> Iterator[pb.ResumeGenerationResponse]:
        request = pb.ResumeGenerationRequest(id=self._generation, user=self._request.user, received=self._received)
        return stub.ResumeGeneration(request, timeout=timeout, metadata=self._metadata)


def _failure(error: grpc.RpcError) -> SpecdecError | None:
    """Return the error of a call that may be retried, or None if it must not be."""
    known = from_rpc_error(error)
    if isinstance(known, QueueFull) or error.code() is grpc.StatusCode.UNAVAILABLE:
        return known or NoVerifier(f"no gateway answers: {error.details()}")
    return None


def _final(error: grpc.RpcError) -> SpecdecError:
    """Return the error of a call that is not retried."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the generation did not end in time")
    return from_rpc_error(error) or InternalError(f"the gateway failed: {error.details()}")
