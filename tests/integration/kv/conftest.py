"""A gateway over real verifiers, which lose their keys and values, and a real store, which does not."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from gateway.app import running
from gateway.config import GatewaySettings, TokenizerSettings
from gateway.request import cache_domain, tenant_of
from gateway.text.tokenizer import ModelTokenizer
from gateway.verifiers.client import VerifierClient
from protos.drafter.v1 import drafter_pb2
from tests.gateway_fakes import MemorySessionStore
from tests.integration.sessions.server import Server
from tests.integration.verifier.conftest import Target, load_target
from tests.integration.verifier.scripted_drafter import RunningDrafter, ScriptedDrafter, Seen, drafts
from tests.tiny_models import make_tiny_model
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

BLOCK = 32
LENGTH = 600
USER = "ann"
DOMAIN = cache_domain(tenant_of(USER), "")
PROMPT = tuple(40 + index % 50 for index in range(3 * BLOCK + 5))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(make_tiny_model(tmp_path_factory.mktemp("target"), "llama", seed=3, context=2000))


@dataclass
class Stage:
    """What a test may look at or hurt."""

    target: Target
    blocks: Redis
    store_url: str
    verifiers: dict[str, AsyncExitStack] = field(default_factory=dict)
    drafter: str = ""
    client: httpx2.AsyncClient = field(default_factory=httpx2.AsyncClient)

    async def add_verifier(self) -> str:
        """Start one; its address."""
        stack = AsyncExitStack()
        settings = {
            "model": {"path": self.target.folder, "device": "cpu"},
            "address": "127.0.0.1:0",
            "drafters": [self.drafter],
            "kv_bytes": 2**24,
            "gamma": 2,
        }
        started = await stack.enter_async_context(verifier(VerifierSettings.load(None, settings)))
        self.verifiers[started.address] = stack
        return started.address

    async def lose(self, address: str) -> None:
        """End a verifier, and with it every key and value it has."""
        await self.verifiers.pop(address).aclose()

    async def holders(self) -> list[str]:
        """The verifiers that have the keys and values of the prompt."""
        found = []
        for address in self.verifiers:
            client = VerifierClient(address)
            if await client.find_kv(PROMPT[:BLOCK], DOMAIN):
                found.append(address)
            await client.close()
        return found

    async def metric(self, name: str, **labels: str) -> float:
        """A counter of the gateway."""
        text = (await self.client.get("/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"{name}_total" and labels.items() <= sample.labels.items()
        )

    async def keys(self) -> list[bytes]:
        """Those of all blocks."""
        found = [key async for key in self.blocks.scan_iter("kv:1:*")]
        return [key for key in found if not key.startswith((b"kv:1:used:", b"kv:1:full:"))]

    async def stored(self, count: int) -> None:
        """Wait until so many blocks are stored."""
        deadline = time.monotonic() + 30
        while len(await self.keys()) < count:
            assert time.monotonic() < deadline, "the blocks are not stored"
            await asyncio.sleep(0.01)

    async def say(self, prompt: Sequence[int] = PROMPT, tokens: int = 40, **options: Any) -> list[int]:
        """The output of one greedy generation."""
        return list((await self.answer(prompt, tokens, **options))["choices"][0]["token_ids"])

    async def answer(self, prompt: Sequence[int], tokens: int, **options: Any) -> dict[str, Any]:
        """The whole answer to one greedy generation."""
        reply = await self.client.post("/v1/completions", json=asked(prompt, tokens) | options)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


def asked(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """The body of a greedy request."""
    return {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "user": USER,
        "ignore_eos": True,
        "return_token_ids": True,
    }


@pytest.fixture
def kv_settings() -> dict[str, Any]:
    """What a test changes of the settings."""
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
        tokenizer = await asyncio.to_thread(ModelTokenizer.load, target.folder)
        gateway = await stack.enter_async_context(running(settings, tokenizer, MemorySessionStore()))
        stage.client = httpx2.AsyncClient(base_url=f"http://{gateway.http}", timeout=60)
        stack.push_async_callback(stage.client.aclose)
        try:
            yield stage
        finally:
            for address in list(stage.verifiers):
                await stage.lose(address)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder opens sockets."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
