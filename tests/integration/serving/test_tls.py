"""Mutual TLS over loopback, with certificates that change while it serves."""

import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from gateway.verifiers.client import VerifierClient
from protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.errors import ConfigError, NoVerifier
from specdec.serving.access import Access
from specdec.serving.channel import open_channel
from specdec.serving.server import LIVENESS, GrpcServer, start_grpc
from specdec.serving.tls import Certificates, DialTlsSettings, TlsSettings, watch_expiry
from tests.integration.serving.certificates import Authority

SERVING = health_pb2.HealthCheckResponse.SERVING


class Servicer(verifier_pb2_grpc.VerifierServiceServicer):
    async def GetVerifierInfo(self, request: object, context: object) -> verifier_pb2.GetVerifierInfoResponse:
        return verifier_pb2.GetVerifierInfoResponse(model="target")


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


async def test_new_files_are_served_without_a_restart(
    server: GrpcServer, settings: DialTlsSettings, tmp_path: Path
) -> None:
    assert await _model(server.address, _certificates(settings)) == "target"
    Authority().issue(tmp_path / "ours")
    assert await _model(server.address, _certificates(settings)) == "target"


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
