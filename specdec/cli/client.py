"""The command line's end of the gRPC contracts: values in, values out, our own errors."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc

from protos.common.v1 import common_pb2
from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.cli.events import Event, Finished, Request, Round, Started, Token
from specdec.cli.exit_codes import Unreachable
from specdec.errors import DeadlineExceeded, InternalError, SpecdecError
from specdec.serving.status import from_rpc_error
from specdec.wire.generation import DrafterState, info_from_pb
from specdec.wire.params import finish_from_pb, mode_to_pb, origin_from_pb

_OPTIONS = (("grpc.enable_http_proxy", 0),)


class Gateway:
    """A connection to a gateway's gRPC API; closing it ends what streams."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._generation = gateway_pb2_grpc.GenerationServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every stream and let go; may be called from a signal handler."""
        self._channel.close()

    def stream(self, request: Request) -> Iterator[Event]:
        """Generate, one event at a time.

        Raises:
            Unreachable: nothing answers at the address.
            SpecdecError: the gateway refused, or failed.
        """
        call = self._generation.StreamGenerate(gateway_pb2.StreamGenerateRequest(request=_request(request)))
        try:
            for message in call:
                yield _event(message)
        except grpc.RpcError as error:
            raise _failure(error, self._address) from error


def drafter_states(verifier: str, timeout: float = 2.0) -> list[DrafterState]:
    """The drafters of the verifier at `host:port`, as it sees them.

    Raises:
        Unreachable: nothing answers there within `timeout` seconds.
    """
    with grpc.insecure_channel(verifier, options=_OPTIONS) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            info = stub.GetVerifierInfo(verifier_pb2.GetVerifierInfoRequest(), timeout=timeout)
        except grpc.RpcError as error:
            raise _failure(error, verifier) from error
    return list(info_from_pb(info).drafters)


def _request(request: Request) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(
        text=request.prompt,
        sampling=gateway_pb2.SamplingOptions(temperature=request.temperature, top_p=request.top_p, seed=request.seed),
        stop=gateway_pb2.StopOptions(max_tokens=request.max_tokens),
        speculation=gateway_pb2.SpeculationOptions(
            mode=mode_to_pb(request.mode) if request.mode else common_pb2.VERIFICATION_MODE_UNSPECIFIED,
            gamma=request.gamma,
            lenience=request.lenience,
        ),
    )


def _event(message: gateway_pb2.StreamGenerateResponse) -> Event:
    match message.WhichOneof("event"):
        case "started":
            return Started(message.started.id, message.started.model, message.started.seed)
        case "round":
            tokens = (_token(token) for token in message.round.tokens)
            return Round(tuple(tokens), tuple(token.text for token in message.round.rejected))
        case "finished":
            return _finished(message.finished)
        case _:
            raise InternalError("the gateway sent an event of a kind this client does not know")


def _token(token: gateway_pb2.CommittedToken) -> Token:
    return Token(token.id, token.text, origin_from_pb(token.origin))


def _finished(finished: gateway_pb2.Finished) -> Finished:
    summary = finished.speculation
    return Finished(
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
    """Our own error when the peer sent one; else what the status means to a caller."""
    ours = from_rpc_error(error)
    if ours is not None:
        return ours
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return Unreachable(f"nothing answers at {address}: is it running? `specdec up` starts everything")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{address} did not answer in time")
        case _:
            return InternalError(f"{address} failed: {error.details()}")
