"""Gateways on free ports, over scripted verifiers that are real gRPC servers."""

from collections.abc import AsyncIterator

import grpc
import pytest

from tests.integration.gateway.replicas import LONG, Replica, replicas
from tests.integration.gateway.stage import Stage, stage
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import ScriptedVerifier


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier(script=LONG)


@pytest.fixture
async def pair(server: Server, verifier: ScriptedVerifier) -> AsyncIterator[list[Replica]]:
    async with replicas(server.url, verifier) as made:
        yield made


@pytest.fixture
async def here() -> AsyncIterator[Stage]:
    async with stage() as made:
        yield made


@pytest.fixture
async def channel(here: Stage) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(here.gateway.grpc) as opened:
        yield opened
