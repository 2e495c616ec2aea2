"""A gateway on free ports over one scripted verifier, with a session store in memory."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from gateway.app import Gateway, running
from gateway.config import GatewaySettings, TokenizerSettings
from tests.integration.gateway.scripted_servicer import serve_scripted
from tests.support.gateway_fakes import ByteTokenizer, ScriptedVerifier
from tests.support.memory_sessions import MemorySessionStore


@dataclass
class Stage:
    """The parts of a running gateway that a test may inspect or break."""

    gateway: Gateway
    verifier: ScriptedVerifier
    store: MemorySessionStore
    settings: GatewaySettings
    client: AsyncOpenAI = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://{self.gateway.http}"


@asynccontextmanager
async def stage(
    verifier: ScriptedVerifier | None = None, *, tokenizer: Any = None, **settings: Any
) -> AsyncIterator[Stage]:
    """Run a gateway and one verifier until the context ends; the tokenizer is one of bytes unless it is given."""
    verifier, store = verifier or ScriptedVerifier(), MemorySessionStore()
    async with AsyncExitStack() as stack:
        values: dict[str, Any] = {
            "model": TokenizerSettings(path=Path("models/bytes")),
            "http": "127.0.0.1:0",
            "address": "127.0.0.1:0",
            "verifiers": (await serve_scripted(verifier, stack),),
            "max_body_bytes": 65536,
            "grace": 0.0,
            "store_patience": 0.0,
        }
        chosen = GatewaySettings(**(values | settings))
        gateway = await stack.enter_async_context(
            running(chosen, {chosen.model.served_name: tokenizer or ByteTokenizer()}, store)
        )
        client = AsyncOpenAI(base_url=f"http://{gateway.http}/v1", api_key="none", max_retries=0, timeout=30)
        stack.push_async_callback(client.close)
        yield Stage(gateway, verifier, store, chosen, client)
