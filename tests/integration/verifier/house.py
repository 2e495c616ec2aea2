"""A real verifier and its scripted drafters, started by a test and stopped with it."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from tests.integration.verifier.client import Client, connected
from tests.integration.verifier.scripted_drafter import RunningDrafter, Script, ScriptedDrafter, eventually
from tests.integration.verifier.target import Target
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings


@dataclass
class House:
    """Starts verifiers and drafters, which end with the test."""

    target: Target
    stack: AsyncExitStack

    async def drafter(self, script: Script, **options: Any) -> RunningDrafter:
        """Start a scripted drafter with the target's tokenizer."""
        options.setdefault("tokenizer_hash", self.target.tokenizer_hash)
        running = await RunningDrafter.start(ScriptedDrafter(script, **options))
        self.stack.push_async_callback(running.server.stop, 0)
        return running

    async def verifier(self, *drafters: RunningDrafter | str, wait: bool = True, **settings: Any) -> Client:
        """Start a verifier with these `drafters`, and return once it has connected to them."""
        addresses = [each if isinstance(each, str) else each.address for each in drafters]
        base = {"address": "127.0.0.1:0", "http": "127.0.0.1:0", "drafters": addresses, "kv_bytes": 2**22}
        drafting = {"drafting": {"timeout": 5.0}}
        overrides = {"model": {"path": self.target.folder, "device": "cpu"}, **base, **drafting, **settings}
        server = await self.stack.enter_async_context(verifier(VerifierSettings.load(None, overrides)))
        client = await self.stack.enter_async_context(connected(server.address))
        if wait:
            for each in drafters:
                if isinstance(each, RunningDrafter):
                    await eventually(lambda each=each: each.servicer.streams > 0)  # type: ignore[misc]
            await self.settled(client)
        return client

    async def settled(self, client: Client) -> None:
        """Wait until no connection to a drafter is pending."""
        states = ["connecting"]
        while "connecting" in states:
            states = [drafter.state for drafter in (await client.info()).drafters]
