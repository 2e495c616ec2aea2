"""Two gateways over one scripted verifier and one real session store."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from gateway.app import Gateway, running
from gateway.config import GatewaySettings, TokenizerSettings
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from tests.integration.gateway.scripted_servicer import serve_scripted
from tests.support.gateway_fakes import ByteTokenizer, Script, ScriptedVerifier

LONG = Script(text="abcdefghijklmnopqrstuvwxyz", gamma=0, pause=0.02)
ASKED: dict[str, Any] = {"prompt": "Say it", "max_tokens": 50}


@dataclass
class Heard:
    """The parts of a generation that a client has received."""

    text: str = ""
    """Text of all choices, in the order of arrival."""
    texts: dict[int, str] = field(default_factory=dict)
    """Text of each choice."""
    last_id: str = ""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    error: dict[str, Any] | None = None

    @property
    def generation(self) -> str:
        return self.last_id.partition(".")[0]

    def hear(self, line: str) -> None:
        if line.startswith("id: "):
            self.last_id = line.removeprefix("id: ")
        elif line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            self.error = chunk.get("error")
            self.chunks.append(chunk)
            for choice in chunk.get("choices", ()):
                self.text += choice["text"]
                self.texts[choice["index"]] = self.texts.get(choice["index"], "") + choice["text"]


@dataclass
class Replica:
    """One gateway and a client of it."""

    gateway: Gateway
    client: httpx2.AsyncClient
    store: RedisSessionStore

    async def post(self, **body: Any) -> httpx2.Response:
        headers = body.pop("headers", {})
        return await self.client.post("/v1/completions", json=ASKED | body, headers=headers)

    async def stream(self, heard: Heard, enough: int = 10**6, **body: Any) -> None:
        """Read a new generation until `enough` characters have arrived."""
        headers = body.pop("headers", {})
        request = ASKED | {"stream": True, "stream_options": {"resumable": True}} | body
        async with self.client.stream("POST", "/v1/completions", json=request, headers=headers) as events:
            await _listen(events, heard, enough)

    async def resume(self, heard: Heard, enough: int = 10**6, user: str = "") -> None:
        """Resume reading where `heard` stopped."""
        path = f"/v1/generations/{heard.generation}/events?user={user}"
        async with self.client.stream("GET", path, headers={"last-event-id": heard.last_id}) as events:
            assert events.status_code == 200, await events.aread()
            await _listen(events, heard, enough)


async def _listen(events: httpx2.Response, heard: Heard, enough: int) -> None:
    async for line in events.aiter_lines():
        heard.hear(line)
        if len(heard.text) >= enough:
            return


@asynccontextmanager
async def replicas(
    url: str, verifier: ScriptedVerifier, count: int = 2, **settings: Any
) -> AsyncIterator[list[Replica]]:
    """Run that many gateways until the context ends."""
    async with AsyncExitStack() as stack:
        values: dict[str, Any] = {
            "model": TokenizerSettings(path=Path("models/bytes")),
            "http": "127.0.0.1:0",
            "address": "127.0.0.1:0",
            "verifiers": (await serve_scripted(verifier, stack),),
            "lease": 1.0,
        }
        chosen = GatewaySettings(**(values | settings))
        made = []
        for _ in range(count):
            store = RedisSessionStore.at(url, StorePolicy(chosen.lease, chosen.session_ttl, chosen.store_patience))
            tokenizers = {chosen.model.served_name: ByteTokenizer()}
            gateway = await stack.enter_async_context(running(chosen, tokenizers, store))
            client = httpx2.AsyncClient(base_url=f"http://{gateway.http}", timeout=30)
            made.append(Replica(gateway, await stack.enter_async_context(client), store))
        yield made
