"""Mutual TLS over loopback, with certificates that change while the server runs."""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from gateway.verifiers.client import VerifierClient
from specdec.errors import ConfigError, NoVerifier
from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.serving.rpc import tls
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.channel import open_channel
from specdec.serving.rpc.server import LIVENESS, GrpcServer, start_grpc
from specdec.serving.rpc.tls import Certificates, DialTlsSettings, TlsSettings, watch_expiry
from tests.integration.serving.certificates import PEER, Authority

SERVING = health_pb2.HealthCheckResponse.SERVING


class Servicer(verifier_pb2_grpc.VerifierServiceServicer):
    async def GetVerifierInfo(self, request: object, context: object) -> verifier_pb2.GetVerifierInfoResponse:
        return verifier_pb2.GetVerifierInfoResponse(model="target")

    async def Generate(self, request: object, context: object) -> AsyncIterator[verifier_pb2.GenerateResponse]:
        for length in range(1000):
            yield verifier_pb2.GenerateResponse(base_len=length)


def _certificates(settings: TlsSettings) -> Certificates:
    certificates = Certificates.of(settings)
    assert certificates
    return certificates


async def _start(settings: TlsSettings, address: str = "127.0.0.1:0", health: str | None = None) -> GrpcServer:
    return await start_grpc(
        address,
        lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Servicer(), server),
        [],
        access=Access(_certificates(settings)),
        health_address=health,
    )


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def settings(authority: Authority, tmp_path: Path) -> DialTlsSettings:
    return authority.issue(tmp_path / "ours")


@pytest.fixture
async def server(settings: DialTlsSettings) -> AsyncIterator[GrpcServer]:
    running = await _start(settings)
    yield running
    await running.stop(0)


async def _model(address: str, certificates: Certificates | None) -> str:
    client = VerifierClient(address, Access(certificates))
    try:
        return (await client.info(5)).model
    finally:
        await client.close()


async def test_who_shares_the_authority_is_served(server: GrpcServer, settings: DialTlsSettings) -> None:
    assert await _model(server.address, _certificates(settings)) == "target"


async def test_plaintext_is_refused(server: GrpcServer) -> None:
    with pytest.raises(NoVerifier):
        await _model(server.address, None)


async def test_a_certificate_of_another_authority_is_refused(
    server: GrpcServer, settings: DialTlsSettings, tmp_path: Path
) -> None:
    stranger = Authority().issue(tmp_path / "theirs").model_copy(update={"ca": settings.ca})
    with pytest.raises(NoVerifier):
        await _model(server.address, _certificates(stranger))


async def test_a_client_without_a_certificate_is_refused(server: GrpcServer, settings: DialTlsSettings) -> None:
    credentials = grpc.ssl_channel_credentials(_certificates(settings).pems.ca)
    options = (("grpc.ssl_target_name_override", settings.peer),)
    async with grpc.aio.secure_channel(server.address, credentials, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_name_is_not_believed(server: GrpcServer, settings: DialTlsSettings) -> None:
    elsewhere = settings.model_copy(update={"peer": "specdec-drafter.namespace.svc"})
    with pytest.raises(NoVerifier):
        await _model(server.address, _certificates(elsewhere))


async def _until_served(address: str, settings: DialTlsSettings) -> None:
    """Wait until new connections get the current certificates."""
    async with asyncio.timeout(60):
        while True:
            with suppress(grpc.aio.AioRpcError):
                async with open_channel(address, Access(_certificates(settings))) as channel:
                    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                return


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "RELOAD", 0.02)


@pytest.mark.usefixtures("quick")
async def test_new_files_are_served_without_a_restart(settings: DialTlsSettings, tmp_path: Path) -> None:
    server = await _start(settings)
    for _ in range(3):
        await _until_served(server.address, settings)
        Authority().issue(tmp_path / "ours")
    await _until_served(server.address, settings)
    await server.stop(0)


@pytest.mark.usefixtures("quick")
async def test_files_that_do_not_belong_together_change_nothing(
    authority: Authority, settings: DialTlsSettings, tmp_path: Path
) -> None:
    server, known = await _start(settings), _certificates(authority.issue(tmp_path / "client"))
    assert settings.key
    assert settings.certificate
    whole = settings.key.read_bytes()
    settings.key.write_bytes((tmp_path / "client" / "tls.key").read_bytes())
    await asyncio.sleep(0.2)
    assert await _model(server.address, known) == "target"
    settings.key.write_bytes(whole)
    await asyncio.sleep(0.2)
    assert await _model(server.address, known) == "target"
    await server.stop(0)


@pytest.mark.usefixtures("quick")
async def test_calls_that_run_go_on_after_a_renewal(settings: DialTlsSettings, tmp_path: Path) -> None:
    server = await _start(settings)
    async with open_channel(server.address, Access(_certificates(settings))) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Generate(verifier_pb2.GenerateRequest())
        assert (await call.read()).base_len == 0
        Authority().issue(tmp_path / "ours")
        await _until_served(server.address, settings)
        assert (await call.read()).base_len == 1
    await server.stop(0)


async def test_a_port_with_tls_belongs_to_one_server(settings: DialTlsSettings) -> None:
    server = await _start(settings)
    with pytest.raises(ConfigError, match="cannot listen"):
        await _start(settings, server.address)
    await server.stop(0)


STORM = """
import sys, time, grpc
port, folder, peer, seconds = sys.argv[1:]
end, served = time.monotonic() + float(seconds), 0
while time.monotonic() < end:
    pems = [open(f"{folder}/{name}", "rb").read() for name in ("ca.crt", "tls.key", "tls.crt")]
    if not all(pems):  # a file is just written, and gRPC aborts a client with an empty one
        continue
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", peer)]
    credentials = grpc.ssl_channel_credentials(*pems)
    channels = [grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) for _ in range(8)]
    for ready in [grpc.channel_ready_future(channel) for channel in channels]:
        try:
            ready.result(timeout=1)
            served += 1
        except grpc.FutureTimeoutError:
            pass
    for channel in channels:
        channel.close()
sys.exit(not served)
"""
SERVER = """
import asyncio, sys
from pathlib import Path
from specdec.serving.rpc import server, tls
from specdec.serving.rpc.access import Access

async def main(folder):
    tls.RELOAD = 0.02
    files = tls.TlsSettings(certificate=folder / "tls.crt", key=folder / "tls.key", ca=folder / "ca.crt")
    running = await server.start_grpc("127.0.0.1:0", lambda server: None, [], Access(tls.Certificates.of(files)))
    print(running.address, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_connections_are_served_among_renewals(
    authority: Authority, settings: DialTlsSettings, tmp_path: Path
) -> None:
    folder = str(tmp_path / "ours")
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    clients: list[asyncio.subprocess.Process] = []
    try:
        assert server.stdout
        port = (await server.stdout.readline()).decode().strip().rpartition(":")[2]
        for _ in range(2):
            storm = (sys.executable, "-c", STORM, port, folder, PEER, "4")
            clients.append(await asyncio.create_subprocess_exec(*storm, stderr=asyncio.subprocess.DEVNULL))
        while any(client.returncode is None for client in clients):
            authority.issue(tmp_path / "ours")
            await asyncio.sleep(0.1)
        await _until_served(f"127.0.0.1:{port}", settings)
        assert [process.returncode for process in (server, *clients)] == [None, 0, 0]
    finally:
        for process in (server, *clients):
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_file_that_is_gone_leaves_what_was_read(server: GrpcServer, settings: DialTlsSettings) -> None:
    certificates = _certificates(settings)
    assert settings.key
    settings.key.unlink()
    assert await _model(server.address, certificates) == "target"


async def test_a_channel_from_before_a_rotation_is_replaced(
    authority: Authority, settings: DialTlsSettings, tmp_path: Path
) -> None:
    before = await _start(settings)
    client = VerifierClient(before.address, Access(_certificates(settings)))
    assert (await client.info(5)).model == "target"
    await before.stop(0)
    Authority().issue(tmp_path / "ours")
    after = await _start(settings, before.address)
    try:
        with pytest.raises(NoVerifier):
            await client.info(5)
        assert (await client.info(5)).model == "target"
    finally:
        await client.close()
        await after.stop(0)


async def test_probes_find_health_and_nothing_else_in_plaintext(settings: DialTlsSettings, free_port: int) -> None:
    door = f"127.0.0.1:{free_port}"
    server = await _start(settings, health=door)
    try:
        async with open_channel(door) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            ready = await stub.Check(health_pb2.HealthCheckRequest())
            alive = await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS))
            verifier = verifier_pb2_grpc.VerifierServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verifier.GetVerifierInfo(verifier_pb2.GetVerifierInfoRequest())
    finally:
        await server.stop(0)
    assert (ready.status == SERVING, alive.status == SERVING) == (False, True)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_certificate_without_its_key_is_a_wrong_setting(settings: DialTlsSettings) -> None:
    with pytest.raises(ValueError, match="given together or not at all"):
        TlsSettings(certificate=settings.certificate)


def test_a_missing_file_is_named(settings: DialTlsSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.pem: No such file"):
        Certificates.of(settings.model_copy(update={"key": tmp_path / "absent.pem"}))


def test_without_files_calls_are_plaintext() -> None:
    assert Certificates.of(TlsSettings()) is None


def test_the_end_of_a_certificate_is_exported_and_follows_the_file(
    authority: Authority, settings: DialTlsSettings, tmp_path: Path
) -> None:
    def exported() -> float:
        value = registry.get_sample_value("specdec_certificate_expiry_timestamp_seconds")
        assert value is not None
        return value

    registry = CollectorRegistry()
    watch_expiry(_certificates(settings), registry)
    assert exported() == pytest.approx(time.time() + 3600, abs=60)
    assert settings.certificate is not None
    settings.certificate.write_text("no certificate", encoding="utf-8")
    assert math.isnan(exported())
    authority.issue(tmp_path / "ours")
    assert exported() == pytest.approx(time.time() + 3600, abs=60)


def test_a_process_without_a_certificate_exports_none() -> None:
    registry = CollectorRegistry()
    watch_expiry(None, registry)
    assert registry.get_sample_value("specdec_certificate_expiry_timestamp_seconds") is None
