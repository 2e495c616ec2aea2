"""Clients of the gateway and the verifiers over gRPC, with values instead of protobuf and the product's own errors."""

from collections.abc import Iterator

import grpc

from specdec.cli.exit_codes import Unreachable
from specdec.cli.local.health import no_gateway
from specdec.client.connection import OPTIONS, GatewayConnection
from specdec.client.events import Event, PromptRequest
from specdec.client.messages import event_from_pb
from specdec.client.request_message import request_to_pb
from specdec.errors import ConfigError, DeadlineExceeded, InternalError, SpecdecError
from specdec.protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.generation import DrafterState, info_from_pb


class GatewayClient:
    """A connection to a gateway's gRPC API.

    Calls raise Unreachable if nothing answers, and the SpecdecError of a gateway that refuses or fails.
    """

    def __init__(self, connection: GatewayConnection) -> None:
        self._address = connection.address
        self._metadata = connection.metadata
        self._channel = connection.open()
        self._generation = gateway_pb2_grpc.GenerationServiceStub(self._channel)
        self._sessions = gateway_pb2_grpc.SessionServiceStub(self._channel)

    def close(self) -> None:
        """End every stream and close the connection; callable from any thread."""
        self._channel.close()

    def create_session(self, user: str = "") -> str:
        """Create a session and return its id."""
        request = gateway_pb2.CreateSessionRequest(user=user)
        try:
            return str(self._sessions.CreateSession(request, metadata=self._metadata).session.id)
        except grpc.RpcError as error:
            raise _failure(error, self._address) from error

    def stream(self, request: PromptRequest) -> Iterator[Event]:
        """Generate, and yield the events as they arrive."""
        call = self._generation.StreamGenerate(
            gateway_pb2.StreamGenerateRequest(request=request_to_pb(request)), metadata=self._metadata
        )
        try:
            for message in call:
                yield event_from_pb(message)
        except grpc.RpcError as error:
            raise _failure(error, self._address) from error


def drafter_states(verifier: str, access: Access, timeout: float = 2.0) -> tuple[DrafterState, ...]:
    """The state of each drafter as seen by the verifier at `host:port`. The token of `access` is sent in plaintext.

    Raises:
        Unreachable: nothing answers at the address.
        DeadlineExceeded: the verifier does not answer within `timeout` seconds.
    """
    with grpc.insecure_channel(verifier, options=OPTIONS) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            request = verifier_pb2.GetVerifierInfoRequest()
            info = stub.GetVerifierInfo(request, timeout=timeout, metadata=access.metadata)
        except grpc.RpcError as error:
            raise _failure(error, verifier) from error
    return info_from_pb(info).drafters


def _failure(error: grpc.RpcError, address: str) -> SpecdecError:
    """The error that the peer sent, or an error for its status if it sent only a status."""
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
