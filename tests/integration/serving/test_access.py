"""The token of a server over loopback: calls with it are served, and health checks need none."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from drafter_service.config import DrafterSettings
from gateway.verifiers.balancer import Replica
from gateway.verifiers.client import VerifierClient, VerifierRefused
from specdec.errors import ConfigError, DrafterMismatch, NoVerifier
from specdec.protos.drafter.v1 import drafter_pb2, drafter_pb2_grpc
from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.discovery import Endpoint
from specdec.serving.rpc.access import UNGUARDED, Access, Metadata
from specdec.serving.rpc.channel import open_channel
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.wire.generation import Fallback, GenerationCall, Speculation
from verifier_service.drafts.client import DrafterClient, Identity
from verifier_service.drafts.link import DrafterLink, LinkState
from verifier_service.drafts.pool import DrafterPool
from verifier_service.metrics import VerifierMetrics

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
OURS, THEIRS = Access(token=SecretStr("open-sesame")), Access(token=SecretStr("open-sesamE"))
CALL = GenerationCall(
    tokens=(1, 2),
    prompt_len=2,
    sampling=SamplingParams(),
    max_tokens=4,
    stop_token_ids=(),
    speculation=Speculation(Mode.REJECTION),
)


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    async def GetVerifierInfo(self, request: object, context: object) -> verifier_pb2.GetVerifierInfoResponse:
        return verifier_pb2.GetVerifierInfoResponse(model="target")

    async def Generate(self, request: object, context: object) -> AsyncIterator[verifier_pb2.GenerateResponse]:
        yield verifier_pb2.GenerateResponse(base_len=7)


class Drafter(drafter_pb2_grpc.DrafterServiceServicer):
    async def Draft(
        self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: object
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        async for request in request_iterator:
            ack = drafter_pb2.HelloAck(model="small", tokenizer_hash=request.hello.tokenizer_hash)
            yield drafter_pb2.DraftResponse(hello_ack=ack)


def _register(server: grpc.aio.Server) -> None:
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Verifier(), server)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(Drafter(), server)


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    running = await start_grpc("127.0.0.1:0", _register, [SERVICE], access=OURS)
    yield running
    await running.stop(0)


async def _code(address: str, metadata: Metadata) -> grpc.StatusCode:
    """Return the status of a call with this metadata."""
    async with open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        rpc = stub.GetVerifierInfo(verifier_pb2.GetVerifierInfoRequest(), metadata=metadata)
        return await rpc.code()


async def _services(address: str, access: Access) -> list[str]:
    """Return the services that reflection lists."""
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = stub.ServerReflectionInfo(metadata=access.metadata)
        await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await asked.read()
        asked.cancel()
    return [each.name for each in answer.list_services_response.service]


async def _refusal(address: str, access: Access) -> grpc.StatusCode:
    """Return the status of refused reflection. The client writes nothing: a write to an ended call fails by itself."""
    async with open_channel(address) as channel:
        asked = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(metadata=access.metadata)
        code: grpc.StatusCode = await asked.code()
        return code


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        THEIRS.metadata,
        (("authorization", OURS.token.get_secret_value()),),
        (("authorization", "Bearer "),),
        (*OURS.metadata, *THEIRS.metadata),
        (*THEIRS.metadata, *OURS.metadata),
    ],
    ids=["none", "another", "no-scheme", "empty", "two", "two-the-other-way"],
)
async def test_a_caller_without_the_token_is_refused(server: GrpcServer, metadata: Metadata) -> None:
    assert await _code(server.address, metadata) is grpc.StatusCode.UNAUTHENTICATED


async def test_who_carries_it_is_served(server: GrpcServer) -> None:
    assert await _code(server.address, OURS.metadata) is grpc.StatusCode.OK


async def test_without_a_token_everybody_is_served() -> None:
    running = await start_grpc("127.0.0.1:0", _register, [SERVICE])
    for metadata in (UNGUARDED.metadata, THEIRS.metadata):
        assert await _code(running.address, metadata) is grpc.StatusCode.OK
    await running.stop(0)


async def test_a_gateway_says_that_its_token_is_refused_and_goes_elsewhere(server: GrpcServer) -> None:
    client = VerifierClient(server.address, THEIRS)
    replica = Replica(client, Endpoint(server.address))
    assert await replica.probe("")
    assert replica.state.startswith("refused: ")
    assert not replica.ready
    with pytest.raises(NoVerifier) as refused:
        await anext(client.generate(CALL, 5))
    assert isinstance(refused.value, VerifierRefused)
    await client.close()


async def test_a_gateway_with_the_token_generates(server: GrpcServer) -> None:
    client = VerifierClient(server.address, OURS)
    assert (await client.info(5)).model == "target"
    assert (await anext(client.generate(CALL, 5))).base_len == 7
    await client.close()


async def test_a_verifier_without_the_token_is_refused_by_a_drafter_and_says_why(server: GrpcServer) -> None:
    link = DrafterLink(server.address, 1.0, VerifierMetrics(CollectorRegistry()))
    with pytest.raises(DrafterMismatch, match="token"):
        async with DrafterClient(link, Identity("v", "hash", THEIRS)).greeted():
            pass
    async with DrafterClient(link, Identity("v", "hash", OURS)).greeted():
        assert link.drafter_state.model == "small"


async def test_a_drafter_with_another_token_is_not_reported_as_another_tokenizer(server: GrpcServer) -> None:
    link = DrafterLink(server.address, 1.0, VerifierMetrics(CollectorRegistry()))
    pool = DrafterPool([link])
    running = asyncio.create_task(DrafterClient(link, Identity("v", "hash", THEIRS)).run())
    async with asyncio.timeout(20):
        while link.state is LinkState.CONNECTING:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    running.cancel()
    assert link.drafter_state.state.startswith("unauthenticated: ")
    assert pool.absence() is Fallback.UNAVAILABLE


async def test_anybody_may_ask_for_health(server: GrpcServer) -> None:
    async with open_channel(server.address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_takes_the_token_as_any_call_does(server: GrpcServer) -> None:
    assert SERVICE in await _services(server.address, OURS)
    assert await _refusal(server.address, UNGUARDED) is grpc.StatusCode.UNAUTHENTICATED


async def test_reflection_moves_with_the_probes_to_their_own_address(free_port: int) -> None:
    probes = f"127.0.0.1:{free_port}"
    running = await start_grpc("127.0.0.1:0", _register, [SERVICE], access=OURS, health_address=probes)
    try:
        assert SERVICE in await _services(probes, UNGUARDED)
        assert await _refusal(running.address, OURS) is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await running.stop(0)


def test_a_token_that_no_header_can_hold_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECDEC_DRAFTER_TOKEN", "hush\n")
    with pytest.raises(ConfigError, match="token: must be of printable ASCII") as wrong:
        DrafterSettings.load(None, {"model": {"path": "x"}})
    assert "hush" not in wrong.value.message


async def test_a_verifier_that_dials_something_else_than_a_drafter_says_so() -> None:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    link = DrafterLink(address, 1.0, VerifierMetrics(CollectorRegistry()))
    await server.start()
    with pytest.raises(DrafterMismatch, match="is no drafter"):
        async with DrafterClient(link, Identity("v", "hash", UNGUARDED)).greeted():
            pass
    await server.stop(None)
