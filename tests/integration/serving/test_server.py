"""A real server on loopback: health, reflection, errors as rich statuses, ports, drain."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.errors import ConfigError, FieldInvalid, InternalError
from specdec.protos.drafter.v1 import drafter_pb2, drafter_pb2_grpc
from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.serving.rpc.channel import open_channel
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.chaos.proxy import Proxy

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name


class Servicer(verifier_pb2_grpc.VerifierServiceServicer):
    async def GetVerifierInfo(self, request: object, context: object) -> verifier_pb2.GetVerifierInfoResponse:
        raise FieldInvalid("no such thing", "thing")

    async def Generate(self, request: object, context: object) -> AsyncIterator[verifier_pb2.GenerateResponse]:
        yield verifier_pb2.GenerateResponse(base_len=7)
        raise ZeroDivisionError("secret detail")


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    running = await start_grpc(
        "127.0.0.1:0",
        lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Servicer(), server),
        [SERVICE],
    )
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(server.address) as channel:
        yield channel


async def test_health_follows_set_serving(server: GrpcServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for serving in (False, True):
        await server.set_serving(serving)
        for service in ("", SERVICE):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert (reply.status == health_pb2.HealthCheckResponse.SERVING) is serving


async def test_a_raised_error_arrives_as_itself(channel: grpc.aio.Channel) -> None:
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetVerifierInfo(verifier_pb2.GetVerifierInfoRequest())
    error = from_rpc_error(caught.value)
    assert isinstance(error, FieldInvalid)
    assert (error.message, error.param) == ("no such thing", "thing")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_bug_ends_the_stream_without_telling_its_details(channel: grpc.aio.Channel) -> None:
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Generate(
        verifier_pb2.GenerateRequest(), metadata=(("x-request-id", "request-9"),)
    )
    assert (await call.read()).base_len == 7
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_rpc_error(caught.value)
    assert isinstance(error, InternalError)
    assert "request-9" in error.message
    assert "secret" not in error.message


async def test_a_status_of_somebody_else_is_not_taken_for_ours(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/no.such.Service/Method")(b"")
    assert from_rpc_error(caught.value) is None


@pytest.mark.parametrize(
    "raw",
    [
        verifier_pb2.GenerateRequest(session_id="aa").SerializeToString().replace(b"aa", b"\xff\xfe"),
        verifier_pb2.GenerateRequest(session_id="Say it").SerializeToString()[:-2],
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_mistake(channel: grpc.aio.Channel, raw: bytes) -> None:
    call = channel.unary_stream(f"/{SERVICE}/Generate", request_serializer=lambda request: request)(raw)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(from_rpc_error(refused.value), FieldInvalid)


class Echo(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers every frame with a pong."""

    async def Draft(self, request_iterator: AsyncIterator[drafter_pb2.DraftRequest], context: object) -> object:
        async for request in request_iterator:
            yield drafter_pb2.DraftResponse(pong=drafter_pb2.Pong(nonce=request.ping.nonce))


async def test_a_broken_frame_ends_its_stream_after_the_good_frames() -> None:
    running = await start_grpc(
        "127.0.0.1:0", lambda server: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(Echo(), server), ()
    )
    good = drafter_pb2.DraftRequest(ping=drafter_pb2.Ping(nonce=7)).SerializeToString()
    async with open_channel(running.address) as channel:
        call = channel.stream_stream(
            "/specdec.drafter.v1.DrafterService/Draft",
            request_serializer=lambda request: request,
            response_deserializer=drafter_pb2.DraftResponse.FromString,
        )()
        await call.write(good)
        assert (await call.read()).pong.nonce == 7
        await call.write(b"\xff" * 20)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert isinstance(from_rpc_error(refused.value), FieldInvalid)
    await running.stop(0)


async def test_a_taken_port_is_refused(server: GrpcServer) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        await start_grpc(server.address, lambda server: None, [])


async def test_a_stopped_server_frees_its_port() -> None:
    first = await start_grpc("127.0.0.1:0", lambda server: None, [])
    await first.stop(0)
    second = await start_grpc(first.address, lambda server: None, [])
    assert second.address == first.address
    await second.stop(0)


async def test_stop_lets_a_running_call_finish_within_grace(server: GrpcServer, channel: grpc.aio.Channel) -> None:
    await server.set_serving(True)
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    stopping = asyncio.create_task(server.stop(5))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    await stopping


async def test_a_peer_that_hangs_in_the_middle_of_a_stream_is_lost_soon() -> None:
    class Silent(verifier_pb2_grpc.VerifierServiceServicer):
        async def Generate(self, request: object, context: object) -> AsyncIterator[verifier_pb2.GenerateResponse]:
            yield verifier_pb2.GenerateResponse(base_len=7)
            await asyncio.Event().wait()

    running = await start_grpc(
        "127.0.0.1:0",
        lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Silent(), server),
        [SERVICE],
    )
    async with Proxy(running.address) as proxy, open_channel(proxy.address) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Generate(verifier_pb2.GenerateRequest())
        assert (await call.read()).base_len == 7
        proxy.freeze()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            async with asyncio.timeout(20):
                await call.read()
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    await running.stop(0)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header(name: bytes, value: bytes) -> bytes:
    """Encode an HTTP/2 header as a literal without indexing (RFC 7541, section 6.2.2)."""
    return b"\0" + b"".join(bytes([len(each)]) + each for each in (name, value))


async def test_a_path_that_is_no_text_harms_nobody_else(server: GrpcServer, channel: grpc.aio.Channel) -> None:
    post, http = b"\x83", b"\x86"
    given = {b":path": b"/\xdc", b":authority": b"x", b"te": b"trailers", b"content-type": b"application/grpc"}
    headers = post + http + b"".join(_header(*each) for each in given.items())
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(1, 5, 1, headers))
    async with asyncio.timeout(10):
        while b"grpc-status" not in (answer := await reader.read(4096)):
            assert answer, "the connection was closed without an answer"
    writer.close()
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_pings_are_answered_however_often_they_come(server: GrpcServer) -> None:
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    settings, ping = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0anything"
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    kinds = list[int]()
    async with asyncio.timeout(20):
        for turn in range(1, 5):
            writer.write(ping * 1000)
            while kinds.count(6) < 1000 * turn:
                header = await reader.readexactly(9)
                kinds.append(header[3])
                await reader.readexactly(int.from_bytes(header[:3]))
    assert 7 not in kinds  # GOAWAY
    writer.close()
    await writer.wait_closed()
