"""A silent stream ends its generation in bounded time, even if the connection answers; one with heartbeats goes on."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import pytest

from gateway.verifiers.client import VerifierClient
from specdec.errors import NoVerifier
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.serving.rpc.server import start_grpc
from specdec.wire.generation import GenerationCall, Round, info_to_pb
from tests.support.gateway_fakes import ScriptedVerifier
from verifier_service.service import Ready, VerifierServicer

SILENCE = 1.0
CALL = GenerationCall(
    session_id="s",
    epoch=1,
    tokens=(1, 2),
    prompt_len=2,
    sampling=SamplingParams(),
    max_tokens=8,
    stop_token_ids=(),
    speculation=Speculation(Mode.OFF),
)


class Silent(pb_grpc.VerifierServiceServicer):
    """Announces heartbeats, and sends nothing after its first round until the test allows it."""

    def __init__(self, heartbeats: bool = True) -> None:
        self.facts = replace(ScriptedVerifier().facts, heartbeats=heartbeats)
        self.peers: set[str] = set()
        self.ended = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def GetVerifierInfo(self, request: Any, context: Any) -> pb.GetVerifierInfoResponse:
        self.peers.add(context.peer())
        return info_to_pb(self.facts)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        try:
            yield pb.GenerateResponse(base_len=2, tokens=b"\1\0\0\0", origins=[4])
            await self.may_go_on.wait()
            yield pb.GenerateResponse(base_len=3, tokens=b"\2\0\0\0", origins=[4])
        finally:
            self.ended.set()


class OneSlowRun:
    """Stand-in for a verifier's generations: one round, a pause of several silence limits, and the last round."""

    def open(self, call: GenerationCall, reader: Any, credit: float) -> Any:
        self._running = asyncio.create_task(self._generate(reader))
        return self

    def grant(self, length: float) -> None: ...

    def close(self) -> None: ...

    async def _generate(self, reader: Any) -> None:
        reader.add(Round(base_len=2, tokens=(1,)))
        await asyncio.sleep(3 * SILENCE)
        reader.add(Round(base_len=3, tokens=(2,), finish=FinishReason.LENGTH))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def connected(servicer: Any, stack: AsyncExitStack, silence: float = SILENCE) -> VerifierClient:
    """Return a client of the servicer that has read its facts."""
    server = await start_grpc("127.0.0.1:0", lambda it: pb_grpc.add_VerifierServiceServicer_to_server(servicer, it), ())
    stack.push_async_callback(server.stop, 0)
    client = VerifierClient(server.address, silence=silence)
    stack.push_async_callback(client.close)
    return client


async def test_a_silent_stream_is_lost_and_its_generation_is_cancelled(stack: AsyncExitStack) -> None:
    servicer = Silent()
    client = await connected(servicer, stack)
    await client.info(30)
    async with aclosing(client.generate(CALL, 600)) as rounds:
        assert (await anext(rounds)).tokens == (1,)
        with pytest.raises(NoVerifier, match="its stream is silent"):
            await anext(rounds)
    async with asyncio.timeout(30):
        await servicer.ended.wait()


async def test_a_verifier_of_a_version_without_heartbeats_may_be_silent(stack: AsyncExitStack) -> None:
    client = await connected(Silent(heartbeats=False), stack)
    await client.info(30)
    async with aclosing(client.generate(CALL, 600)) as rounds:
        await anext(rounds)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * SILENCE):
                await anext(rounds)


async def test_heartbeats_keep_a_slow_generation_and_are_no_rounds(stack: AsyncExitStack) -> None:
    servicer = VerifierServicer(heartbeat=SILENCE / 20)
    facts: Any = replace(ScriptedVerifier().facts, heartbeats=True)
    pool: Any = type("NoDrafters", (), {"states": list})()
    sources: Any = type("NoSources", (), {"names": ()})()
    prompts: Any = type("NoPrompts", (), {"rate": 0.0})()
    generations: Any = OneSlowRun()
    kv: Any = None
    servicer.become_ready(Ready(facts, generations, pool, sources, prompts, kv))
    client = await connected(servicer, stack)
    await client.info(30)
    async with aclosing(client.generate(CALL, 600)) as rounds:
        assert [each.tokens async for each in rounds] == [(1,), (2,)]


async def test_a_message_of_a_generation_tells_when_the_verifier_was_heard(stack: AsyncExitStack) -> None:
    client = await connected(Silent(), stack)
    began = time.monotonic()
    await client.info(30)
    assert client.heard < began
    async with aclosing(client.generate(CALL, 600)) as rounds:
        await anext(rounds)
        assert began < client.heard <= time.monotonic()


async def test_a_replaced_channel_has_its_own_connection_and_old_calls_continue(
    stack: AsyncExitStack,
) -> None:
    servicer = Silent()
    client = await connected(servicer, stack, silence=60)
    await client.info(30)
    async with aclosing(client.generate(CALL, 600)) as rounds:
        assert (await anext(rounds)).tokens == (1,)
        heard = client.heard
        client.redial()
        await client.info(30)
        assert len(servicer.peers) == 2
        servicer.may_go_on.set()
        assert [each.tokens async for each in rounds] == [(2,)]
        assert client.heard == heard
