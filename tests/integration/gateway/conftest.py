"""Gateways on free ports, over verifiers that are real gRPC servers with a script."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from specdec.cli.processes import Children
from tests.gateway_fakes import ScriptedVerifier
from tests.integration.gateway.replicas import LONG, Replica, replicas
from tests.integration.gateway.stage import Stage, stage
from tests.integration.sessions.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="specdec-test-"))
    try:
        with Children(grace=5) as children:
            yield Server(folder, children)
    finally:
        shutil.rmtree(folder)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder opens sockets."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
