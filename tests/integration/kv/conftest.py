"""A gateway over real verifiers that lose their KV, and a real store that keeps it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from gateway.app import running
from gateway.config import GatewaySettings, TokenizerSettings
from gateway.models.routing import load_tokenizers
from specdec.protos.drafter.v1 import drafter_pb2
from tests.integration.kv.stage import BLOCK, LENGTH, PROMPT, Stage
from tests.integration.sessions.server import Server
from tests.integration.verifier.scripted_drafter import RunningDrafter, ScriptedDrafter, Seen, drafts
from tests.integration.verifier.target import Target, load_target
from tests.support.memory_sessions import MemorySessionStore
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(make_tiny_model(tmp_path_factory.mktemp("target"), "llama", seed=3, context=2000))


@pytest.fixture
def kv_settings() -> dict[str, Any]:
    """Gateway settings that a test changes."""
    return {}


@pytest.fixture
async def here(target: Target, server: Server, kv_settings: dict[str, Any]) -> AsyncIterator[Stage]:
    """Two verifiers that draft with an oracle, and a gateway over both."""

    reference = [*PROMPT, *target.greedy(PROMPT, LENGTH)]

    def oracle(seen: Seen, gamma: int) -> Sequence[drafter_pb2.DraftResponse]:
        done = len(seen.tokens)
        return [drafts(seen, reference[done : done + gamma])] if reference[done:] else []

    async with AsyncExitStack() as stack:
        blocks = Redis.from_url(server.url)
        stack.push_async_callback(blocks.aclose)
        await blocks.flushall()
        stage = Stage(target, blocks, server.url)
        drafter = await RunningDrafter.start(ScriptedDrafter(oracle, tokenizer_hash=target.tokenizer_hash))
        stack.push_async_callback(drafter.server.stop, 0)
        stage.drafter = drafter.address
        addresses = (await stage.add_verifier(), await stage.add_verifier())
        kv = {"redis_url": server.url, "block_tokens": BLOCK, "patience": 30.0} | kv_settings
        settings = GatewaySettings(
            model=TokenizerSettings(path=Path(target.folder)),
            http="127.0.0.1:0",
            address="127.0.0.1:0",
            verifiers=addresses,
            poll=0.1,
            kv=kv,  # type: ignore[arg-type]
        )
        tokenizers = await load_tokenizers(settings)
        gateway = await stack.enter_async_context(running(settings, tokenizers, MemorySessionStore()))
        stage.client = httpx2.AsyncClient(base_url=f"http://{gateway.http}", timeout=60)
        stack.push_async_callback(stage.client.aclose)
        try:
            yield stage
        finally:
            for address in list(stage.verifiers):
                await stage.lose(address)
