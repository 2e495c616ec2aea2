"""The verifiers, the stored blocks and the gateway, for a test to inspect or break."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from gateway.callers.caller import cache_domain, tenant_of
from gateway.verifiers.client import VerifierClient
from tests.integration.verifier.target import Target
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

BLOCK = 32
LENGTH = 600
USER = "ann"
DOMAIN = cache_domain(tenant_of(USER), "")
PROMPT = tuple(40 + index % 50 for index in range(3 * BLOCK + 5))


@dataclass
class Stage:
    """The parts of the system that a test may inspect or break."""

    target: Target
    blocks: Redis
    store_url: str
    verifiers: dict[str, AsyncExitStack] = field(default_factory=dict)
    drafter: str = ""
    client: httpx2.AsyncClient = field(default_factory=httpx2.AsyncClient)

    async def add_verifier(self) -> str:
        """Start a verifier and return its address."""
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
        """End a verifier, which loses all its KV."""
        await self.verifiers.pop(address).aclose()

    async def holders(self) -> list[str]:
        """Return the addresses of the verifiers that hold the KV of the prompt."""
        found = []
        for address in self.verifiers:
            client = VerifierClient(address)
            if await client.find_kv(PROMPT[:BLOCK], DOMAIN):
                found.append(address)
            await client.close()
        return found

    async def metric(self, name: str, **labels: str) -> float:
        """Return a counter of the gateway."""
        text = (await self.client.get("/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"{name}_total" and labels.items() <= sample.labels.items()
        )

    async def keys(self) -> list[bytes]:
        """Return the keys of all blocks."""
        found = [key async for key in self.blocks.scan_iter("kv:1:*")]
        return [key for key in found if not key.startswith((b"kv:1:used:", b"kv:1:full:"))]

    async def stored(self, count: int) -> None:
        """Wait until this many blocks are stored."""
        deadline = time.monotonic() + 30
        while len(await self.keys()) < count:
            assert time.monotonic() < deadline, "the blocks are not stored"
            await asyncio.sleep(0.01)

    async def say(self, prompt: Sequence[int] = PROMPT, tokens: int = 40, **options: Any) -> list[int]:
        """Return the output of one greedy generation."""
        return list((await self.answer(prompt, tokens, **options))["choices"][0]["token_ids"])

    async def answer(self, prompt: Sequence[int], tokens: int, **options: Any) -> dict[str, Any]:
        """Return the whole answer to one greedy generation."""
        reply = await self.client.post("/v1/completions", json=asked(prompt, tokens) | options)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


def asked(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """Return the body of a greedy request."""
    return {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "user": USER,
        "ignore_eos": True,
        "return_token_ids": True,
    }
