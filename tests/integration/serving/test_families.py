"""Every server accepts both address families at `[::]`, and one of them where the kernel has no other."""

import asyncio
import urllib.request
from contextlib import closing
from dataclasses import dataclass

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gateway.http.server import http_server
from specdec.errors import ConfigError
from specdec.serving.addresses import join_address, listen, split_address
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.serving.telemetry.metrics import serve_metrics
from tests.support.addresses import NEEDS_IPV6

FAMILIES = ("127.0.0.1", "::1")


@dataclass
class Case:
    """How an address is asked for, and the hosts at which it must answer."""

    address: str
    bound: str
    hosts: tuple[str, ...]


@pytest.fixture(
    params=[
        pytest.param(Case("[::]:0", "[::]", FAMILIES), id="both", marks=NEEDS_IPV6),
        pytest.param(Case("[::1]:0", "[::1]", ("::1",)), id="loopback", marks=NEEDS_IPV6),
        pytest.param(Case("[::]:0", "0.0.0.0", ("127.0.0.1",)), id="ipv4"),
    ]
)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    if request.param.bound == "0.0.0.0":
        monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: False)
    chosen: Case = request.param
    return chosen


def _ports(case: Case, *addresses: str | None) -> list[int]:
    assert all(address and address.startswith(f"{case.bound}:") for address in addresses)
    return [split_address(address)[1] for address in addresses if address]


def _get(host: str, port: int, path: str, headers: dict[str, str] | None = None) -> str:
    request = urllib.request.Request(f"http://{join_address(host, port)}{path}", headers=headers or {})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(reply.read().decode())


async def _serving(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def _nothing(server: grpc.aio.Server) -> None:
    """Register no services."""


async def _start(address: str, health: str | None = None) -> GrpcServer:
    server = await start_grpc(address, _nothing, [], health_address=health)
    await server.set_serving(True)
    return server


async def test_grpc_and_its_probes_answer(case: Case) -> None:
    probed, _ = listen(case.address)
    health = join_address(split_address(case.address)[0], probed.getsockname()[1])
    probed.close()
    server = await _start(case.address, health)
    (port,) = _ports(case, server.address)
    for host in case.hosts:
        assert await _serving(join_address(host, port))
        assert await _serving(join_address(host, split_address(health)[1]))
    await server.stop(0)


async def test_metrics_answer(case: Case) -> None:
    with closing(serve_metrics(case.address, CollectorRegistry(), lambda: True)) as server:
        (port,) = _ports(case, server.address)
        for host in case.hosts:
            assert await asyncio.to_thread(_get, host, port, "/readyz") == "ready\n"


async def _client(scope: Scope, receive: Receive, send: Send) -> None:
    client = Request(scope).client
    await PlainTextResponse(client.host if client else "")(scope, receive, send)


async def test_http_answers_and_knows_its_clients(case: Case) -> None:
    async with http_server(_client, case.address, proxies=FAMILIES) as address:
        (port,) = _ports(case, address)
        for host in case.hosts:
            assert await asyncio.to_thread(_get, host, port, "/") == host
            behind = {"x-forwarded-for": "192.0.2.9"}
            assert await asyncio.to_thread(_get, host, port, "/", behind) == "192.0.2.9"


@NEEDS_IPV6
async def test_a_taken_address_is_named_with_its_brackets() -> None:
    server = await _start("[::1]:0")
    port = split_address(server.address)[1]
    taken = rf"\[::1\]:{port}: Address already in use$"
    with pytest.raises(ConfigError, match=f"^cannot listen on {taken}"):
        await _start(server.address)
    with pytest.raises(ConfigError, match=f"^http address {taken}"):
        serve_metrics(server.address, CollectorRegistry(), lambda: True)
    with pytest.raises(ConfigError, match=f"^cannot listen on {taken}"):
        async with http_server(_client, server.address):
            pass
    await server.stop(0)
