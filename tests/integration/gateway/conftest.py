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
from gateway.verifiers.verifier import Call, VerifiedRound
from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.rules.params import Speculation
from specdec.serving.server import start_grpc
from specdec.wire.logprobs import logprobs_to_pb
from specdec.wire.params import finish_to_pb, mode_from_pb, origin_to_pb, sampling_from_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from tests.gateway_fakes import ByteTokenizer, MemorySessionStore, ScriptedVerifier


class ScriptedServicer(pb_grpc.VerifierServiceServicer):
    """A scripted verifier behind a socket."""

    def __init__(self, verifier: ScriptedVerifier) -> None:
        self.verifier = verifier

    async def GetVerifierInfo(self, request: Any, context: Any) -> pb.GetVerifierInfoResponse:
        facts = self.verifier.facts
        return pb.GetVerifierInfoResponse(
            model=facts.model,
            tokenizer_hash=facts.tokenizer_hash,
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            end_token_ids=facts.end_token_ids,
            gamma_max=facts.gamma_max,
            system_fingerprint=facts.system_fingerprint,
        )

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for verified in self.verifier.generate(_call(request), context.time_remaining()):
            yield _message(verified)


def _call(request: pb.GenerateRequest) -> Call:
    gamma = request.speculation.gamma if request.speculation.HasField("gamma") else None
    return Call(
        session_id=request.session_id,
        epoch=request.epoch,
        tokens=tokens_from_bytes(request.tokens),
        prompt_len=request.prompt_len,
        sampling=sampling_from_pb(request.sampling),
        max_tokens=request.max_tokens,
        stop_token_ids=tuple(request.stop_token_ids),
        speculation=Speculation(mode_from_pb(request.speculation.mode), gamma, request.speculation.lenience),
        logprobs=request.logprobs if request.HasField("logprobs") else None,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _message(verified: VerifiedRound) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        base_len=verified.base_len,
        tokens=tokens_to_bytes(verified.tokens),
        origins=[origin_to_pb(origin) for origin in verified.origins],
        draft_tokens=tokens_to_bytes(verified.draft),
        accepted=verified.accepted,
        finish_reason=finish_to_pb(verified.finish),
        fallback_reason=verified.fallback_reason,
        logprobs=logprobs_to_pb(verified.logprobs),
    )


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
