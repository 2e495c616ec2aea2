"""A gateway on free ports, over verifiers that are real gRPC servers with a script."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from openai import AsyncOpenAI

from gateway.app import Gateway, running
from gateway.config import GatewaySettings, TokenizerSettings
from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.serving.server import start_grpc
from specdec.wire.generation import call_from_pb, info_to_pb, round_to_pb
from tests.gateway_fakes import ByteTokenizer, MemorySessionStore, ScriptedVerifier


class ScriptedServicer(pb_grpc.VerifierServiceServicer):
    """A scripted verifier behind a socket."""

    def __init__(self, verifier: ScriptedVerifier) -> None:
        self.verifier = verifier

    async def GetVerifierInfo(self, request: Any, context: Any) -> pb.GetVerifierInfoResponse:
        return info_to_pb(self.verifier.facts)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for verified in self.verifier.generate(call_from_pb(request), context.time_remaining()):
            yield round_to_pb(verified)


@dataclass
class Stage:
    """Everything a test may look at or hurt."""

    gateway: Gateway
    verifier: ScriptedVerifier
    store: MemorySessionStore
    settings: GatewaySettings
    client: AsyncOpenAI = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://{self.gateway.http}"


@asynccontextmanager
async def stage(**settings: Any) -> AsyncIterator[Stage]:
    """A gateway and one verifier, until the context ends."""
    verifier, store = ScriptedVerifier(), MemorySessionStore()
    async with AsyncExitStack() as stack:
        server = await start_grpc(
            "127.0.0.1:0", lambda it: pb_grpc.add_VerifierServiceServicer_to_server(ScriptedServicer(verifier), it), ()
        )
        stack.push_async_callback(server.stop, 0)
        values: dict[str, Any] = {
            "model": TokenizerSettings(path=Path("models/bytes")),
            "http": "127.0.0.1:0",
            "address": "127.0.0.1:0",
            "verifiers": (server.address,),
            "max_body_bytes": 65536,
            "grace": 0.0,
            "store_patience": 0.0,
        }
        chosen = GatewaySettings(**(values | settings))
        gateway = await stack.enter_async_context(running(chosen, ByteTokenizer(), store))
        client = AsyncOpenAI(base_url=f"http://{gateway.http}/v1", api_key="none", max_retries=0, timeout=30)
        stack.push_async_callback(client.close)
        yield Stage(gateway, verifier, store, chosen, client)


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
