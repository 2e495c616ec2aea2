"""TLS in both APIs for callers without certificates. Changed certificate files are read again."""

import asyncio
import shutil
import ssl
from pathlib import Path

import grpc
import pytest

from gateway.app import Gateway
from specdec.errors import ConfigError
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc import tls
from specdec.serving.rpc.tls import PublicTlsSettings
from tests.integration.gateway.stage import stage
from tests.integration.serving.certificates import Authority


def issue(folder: Path, name: str) -> PublicTlsSettings:
    """Replace the certificate with one of a new authority."""
    tls = Authority().issue(folder, name)
    return PublicTlsSettings(certificate=tls.certificate, key=tls.key)


def trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


async def answer(address: str, context: ssl.SSLContext) -> bytes:
    """Return the first line of the answer to GET /v1/models on a new connection."""
    host, port = address.split(":")
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="gateway.test")
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
    return line


async def models(address: str, ca: bytes) -> int:
    """Return the number of models listed over gRPC on a new connection."""
    options = (("grpc.ssl_target_name_override", "gateway.test"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options) as channel:
        found = await pb_grpc.ModelServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=60)
    return len(found.models)


async def is_shown(gateway: Gateway, http: ssl.SSLContext, ca: bytes) -> bool:
    """Whether both APIs present a certificate of this authority on a new connection."""
    try:
        return (await answer(gateway.http, http)).startswith(b"HTTP/1.1 200") and await models(gateway.grpc, ca) == 1
    except (ssl.SSLCertVerificationError, grpc.aio.AioRpcError):
        return False


async def test_both_apis_show_the_certificate_and_a_renewed_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "RELOAD", 0.05)
    settings, ca = issue(tmp_path / "tls", "gateway.test"), tmp_path / "tls" / "ca.crt"
    async with stage(public_tls=settings) as here:
        first, old = trusting(ca), ca.read_bytes()
        assert (await answer(here.gateway.http, first)).startswith(b"HTTP/1.1 200")
        assert await models(here.gateway.grpc, old) == 1
        issue(tmp_path / "tls", "gateway.test")
        renewed = trusting(ca)
        async with asyncio.timeout(60):
            while not await is_shown(here.gateway, renewed, ca.read_bytes()):  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(0.05)
        with pytest.raises(ssl.SSLCertVerificationError):
            await answer(here.gateway.http, first)
        with pytest.raises(grpc.aio.AioRpcError):
            await models(here.gateway.grpc, old)
        issue(tmp_path / "other", "gateway.test")
        shutil.copy(tmp_path / "other" / "tls.key", tmp_path / "tls" / "tls.key")
        await asyncio.sleep(0.5)
        assert (await answer(here.gateway.http, renewed)).startswith(b"HTTP/1.1 200"), "a wrong pair changes nothing"


async def test_plaintext_is_not_served_beside_tls(tmp_path: Path) -> None:
    async with stage(public_tls=issue(tmp_path, "gateway.test")) as here:
        host, port = here.gateway.http.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            assert b"200" not in await reader.read()
        writer.close()


async def test_files_that_are_no_pair_stop_the_start(tmp_path: Path) -> None:
    one, other = issue(tmp_path / "one", "a"), issue(tmp_path / "other", "b")
    with pytest.raises(ConfigError, match="public_tls"):
        async with stage(public_tls=PublicTlsSettings(certificate=one.certificate, key=other.key)):
            pass
