"""A scripted verifier as a real gRPC server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.serving.rpc.server import start_grpc
from specdec.wire.generation import call_from_pb, info_to_pb, round_to_pb
from specdec.wire.passes import orders_from_pb, pass_to_pb
from tests.support.gateway_fakes import ScriptedVerifier


class ScriptedServicer(pb_grpc.VerifierServiceServicer):
    """The gRPC service of a scripted verifier."""

    def __init__(self, verifier: ScriptedVerifier) -> None:
        self.verifier = verifier

    async def GetVerifierInfo(self, request: Any, context: Any) -> pb.GetVerifierInfoResponse:
        return info_to_pb(self.verifier.facts)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for verified in self.verifier.generate(call_from_pb(request), context.time_remaining()):
            yield round_to_pb(verified)

    async def Serve(self, requests: AsyncIterator[pb.ServeRequest], context: Any) -> AsyncIterator[pb.ServeResponse]:
        async for done in self.verifier.serve(orders_from_pb(request) async for request in requests):
            yield pass_to_pb(done)


async def serve_scripted(verifier: ScriptedVerifier, stack: AsyncExitStack) -> str:
    """Serve the verifier until the stack is closed, and return its address."""
    server = await start_grpc(
        "127.0.0.1:0", lambda it: pb_grpc.add_VerifierServiceServicer_to_server(ScriptedServicer(verifier), it), ()
    )
    stack.push_async_callback(server.stop, 0)
    return server.address
