"""Read position of one generation, and the policy for calls that break."""

import random
import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from specdec.client.events import Event, FinishedEvent, PromptRequest, RoundEvent, StartedEvent
from specdec.client.messages import event_from_pb
from specdec.client.request_message import request_to_pb
from specdec.errors import DeadlineExceeded, InternalError, NoVerifier, QueueFull, SpecdecError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1.gateway_pb2_grpc import GenerationServiceStub
from specdec.serving.rpc.status import from_rpc_error

Metadata = tuple[tuple[str, str], ...]


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

    def after(self, error: grpc.RpcError, failures: int) -> float:
        """Return the delay after the last of `failures` broken calls in a row, or raise the error if it is final."""
        failure = _failure(error)
        if failure is None or failures >= self.attempts:
            raise (failure or _final(error)) from error
        return self.pause(failures)


class ReadPosition:
    """Read position of one generation. Each call continues after the last token that arrived."""

    def __init__(self, request: PromptRequest | str, metadata: Metadata) -> None:
        """Begin a generation. `metadata` is that of every call."""
        self._request = request_to_pb(PromptRequest(request) if isinstance(request, str) else request)
        if not self._request.request_id:
            self._request.request_id = str(uuid.uuid4())  # prevents a second generation if a response is lost
        shown = re.fullmatch(r"[\x21-\x7e]{1,128}", self._request.request_id)
        self.metadata: Metadata = (*metadata, ("x-request-id", self._request.request_id)) if shown else metadata
        """Metadata of the calls, with the request id for the logs of the services."""
        self._generation = ""
        """Generation id, once it has begun."""
        self._received: Counter[int] = Counter()
        """Number of output tokens read so far, by choice."""
        self._finished: set[int] = set()
        """Choices whose last event has arrived."""
        self.failures = 0
        """Number of broken calls since the last token."""

    def next_call(self) -> pb.StreamGenerateRequest | pb.ResumeGenerationRequest:
        """Return the message of the next call, and count the call as broken until a token arrives."""
        self.failures += 1
        if not self._generation:
            return pb.StreamGenerateRequest(request=self._request, resumable=True)
        asked = pb.ResumeGenerationRequest(id=self._generation, user=self._request.user)
        if self._request.n > 1:
            asked.received_of_choices.extend(self._received[index] for index in range(self._request.n))
        else:
            asked.received = self._received[0]
        return asked

    def begin(self, channel: grpc.Channel | grpc.aio.Channel, deadline: float) -> Any:
        """Begin the next call and return its stream of messages. `deadline` is in seconds of `time.monotonic`."""
        stub, request = GenerationServiceStub(channel), self.next_call()
        method: Any = stub.StreamGenerate if isinstance(request, pb.StreamGenerateRequest) else stub.ResumeGeneration
        return method(request, timeout=max(0.0, deadline - time.monotonic()), metadata=self.metadata)

    def take(self, message: pb.StreamGenerateResponse | pb.ResumeGenerationResponse) -> Event | None:
        """Return the event of a message, or None if it has arrived before."""
        event = event_from_pb(message)
        match event:
            case StartedEvent() if self._generation:
                return None
            case StartedEvent():
                self._generation = event.id
            case RoundEvent():
                self._received[event.choice] += len(event.tokens)
                self.failures = 1
            case FinishedEvent() if event.choice in self._finished:
                return None
            case FinishedEvent():
                self._finished.add(event.choice)
        return event


def _failure(error: grpc.RpcError) -> SpecdecError | None:
    """Return the error of a call that may be retried, or None if it must not be."""
    known = from_rpc_error(error)
    if isinstance(known, QueueFull) or error.code() is grpc.StatusCode.UNAVAILABLE:
        return known or NoVerifier(f"no gateway answers: {error.details()}")
    return None


def _final(error: grpc.RpcError) -> SpecdecError:
    """Return the error of a call that is not retried."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the call did not end in time")
    return from_rpc_error(error) or InternalError(f"the gateway failed: {error.details()}")
