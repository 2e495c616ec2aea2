"""A running drafter with its real worker and ports, and the ways for a test to reach it."""

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from grpc_health.v1 import health_pb2, health_pb2_grpc

from drafter_service.app import RunningDrafter
from drafter_service.service import SERVICE
from specdec.protos.drafter.v1 import drafter_pb2_grpc
from specdec.serving.rpc.channel import open_channel
from tests.integration.drafter.verifier_by_hand import PATIENCE, Verifier


class Service:
    """A running drafter and its addresses."""

    def __init__(self, running: RunningDrafter, tokenizer_hash: str) -> None:
        self._running = running
        self._hash = tokenizer_hash

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Verifier]:
        """Open a stream without the handshake."""
        async with open_channel(self._running.address) as channel:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
            try:
                yield Verifier(call, self._hash)
            finally:
                call.cancel()

    @asynccontextmanager
    async def verifier(self, verifier_id: str = "by hand") -> AsyncIterator[Verifier]:
        """Open a stream and complete its handshake."""
        async with self.stream() as verifier:
            await verifier.hello(verifier_id=verifier_id)
            yield verifier

    async def healthy(self) -> bool:
        """Whether the drafter reports that it serves."""
        async with open_channel(self._running.address) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def metric(self, name: str) -> float:
        """Return a metric, summed over its labels; 0 before the first count."""
        body = await asyncio.to_thread(self._scrape)
        return sum(float(line.split()[-1]) for line in body.splitlines() if re.match(rf"{name}[ {{]", line))

    async def until(self, name: str, value: float) -> None:
        """Wait until a metric has that value."""
        async with asyncio.timeout(PATIENCE):
            while await self.metric(name) != value:  # noqa: ASYNC110 - another process's state, as it were
                await asyncio.sleep(0.01)

    def _scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self._running.http}/metrics", timeout=PATIENCE) as reply:
            return str(reply.read().decode())


Serve = Callable[..., AbstractAsyncContextManager[Service]]
"""Runs a drafter with the given settings."""
