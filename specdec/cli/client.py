"""Calls the gateway and the verifiers over gRPC, with values in place of protobuf and the product's own errors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from pydantic import SecretStr

from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.cli.events import Event, FinishedEvent, PromptRequest, RoundEvent, StartedEvent, Token
from specdec.cli.exit_codes import Unreachable
from specdec.cli.hints import no_gateway
from specdec.errors import ConfigError, DeadlineExceeded, InternalError, SpecdecError
from specdec.serving.access import Access
from specdec.serving.status import from_rpc_error
from specdec.wire.generation import DrafterState, info_from_pb
from specdec.wire.params import finish_from_pb, mode_to_pb, origin_from_pb

_OPTIONS = (("grpc.enable_http_proxy", 0),)


@dataclass(frozen=True, slots=True)
class Connection:
    """How a gateway's gRPC API is reached."""

    address: str
    """`host:port`."""
    key: str = field(default="", repr=False)
    """The API key that every call carries; empty for none."""
    ca: Path | None = None
    """PEM file of the authorities that the gateway's certificate comes from; None for plaintext."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21-\x7e]*", self.key):
            raise ConfigError("--api-key must be of printable ASCII characters without spaces and line ends")

    def open(self) -> grpc.Channel:
        """A channel; raises ConfigError when the file cannot be read."""
        if self.ca is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        try:
            credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        except OSError as error:
            raise ConfigError(f"--ca {self.ca}: {error.strerror}") from error
        return grpc.secure_channel(self.address, credentials, options=_OPTIONS)


class GatewayClient:
    """A connection to a gateway's gRPC API."""

    def __init__(self, connection: Connection) -> None:
        self._address = connection.address
        self._metadata = Access(token=SecretStr(connection.key)).metadata
        self._channel = connection.open()
        self._generation = gateway_pb2_grpc.GenerationServiceStub(self._channel)

    def close(self) -> None:
        """End every stream and close the connection; from any thread."""
        self._channel.close()

    def stream(self, request: PromptRequest) -> Iterator[Event]:
        """Generate, and yield the events as they come.

        Raises:
            Unreachable: nothing answers at the address.
            SpecdecError: the gateway refused the request, or failed.
        """
        call = self._generation.StreamGenerate(
            gateway_pb2.StreamGenerateRequest(request=_request(request)), metadata=self._metadata
        )
        try:
            for message in call:
                yield _event(message)
        except grpc.RpcError as error:
            raise _failure(error, self._address) from error


def drafter_states(verifier: str, access: Access, timeout: float = 2.0) -> tuple[DrafterState, ...]:
    """The drafters of the verifier at `host:port`, as it sees them; the token of `access` is sent, in plaintext.

    Raises:
        Unreachable: nothing answers at the address.
        DeadlineExceeded: the verifier does not answer within `timeout` seconds.
    """
    with grpc.insecure_channel(verifier, options=_OPTIONS) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            request = verifier_pb2.GetVerifierInfoRequest()
            info = stub.GetVerifierInfo(request, timeout=timeout, metadata=access.metadata)
        except grpc.RpcError as error:
            raise _failure(error, verifier) from error
    return info_from_pb(info).drafters


def _request(request: PromptRequest) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(
        text=request.prompt,
        sampling=gateway_pb2.SamplingOptions(temperature=request.temperature, top_p=request.top_p, seed=request.seed),
        stop=gateway_pb2.StopOptions(max_tokens=request.max_tokens),
        speculation=gateway_pb2.SpeculationOptions(
            mode=mode_to_pb(request.mode),
            gamma=request.gamma,
            lenience=request.lenience,
        ),
    )


def _event(message: gateway_pb2.StreamGenerateResponse) -> Event:
    match message.WhichOneof("event"):
        case "started":
            return StartedEvent(message.started.id, message.started.model, message.started.seed)
        case "round":
            tokens = (Token(token.id, token.text, origin_from_pb(token.origin)) for token in message.round.tokens)
            return RoundEvent(tuple(tokens), tuple(token.text for token in message.round.rejected))
        case "finished":
            return _finished(message.finished)
        case _:
            raise InternalError("the gateway sent an event of a kind this client does not know")


def _finished(finished: gateway_pb2.Finished) -> FinishedEvent:
    summary = finished.speculation
    return FinishedEvent(
        reason=finish_from_pb(finished.finish_reason),
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        drafted=summary.num_draft_tokens,
        accepted=summary.num_accepted_draft_tokens,
        rounds=summary.num_spec_steps + summary.num_plain_steps,
        fallbacks=dict(summary.fallbacks),
        lossy=summary.lossy,
    )


def _failure(error: grpc.RpcError, address: str) -> SpecdecError:
    """The error that the peer sent, or, when it sent only a status, the one that the status means to a caller."""
    ours = from_rpc_error(error)
    if ours is not None:
        return ours
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.UNIMPLEMENTED if hint := no_gateway(address):
            return ConfigError(hint)
        case grpc.StatusCode.UNAVAILABLE:
            return Unreachable(f"nothing answers at {address}: is it running? `specdec up` starts everything")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{address} did not answer in time")
        case _:
            return InternalError(f"{address} failed: {error.details()}")
