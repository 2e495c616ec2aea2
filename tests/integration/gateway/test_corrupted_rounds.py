"""Rounds corrupted on the way to the gateway never become tokens: their verifier is lost and another takes over."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import FailoverSettings
from gateway.metrics import GatewayMetrics
from gateway.tasks import cancel_and_wait
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from gateway.verifiers.failover import Failover
from gateway.verifiers.round_streams import PassStream, RoundCheck
from specdec.protos.verifier.v1 import verifier_pb2_grpc as pb_grpc
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.serving.discovery import Endpoint
from specdec.serving.rpc import checksum
from specdec.wire.generation import GenerationCall, VerifierInfo
from specdec.wire.passes import Opening
from tests.integration.gateway.scripted_servicer import ScriptedServicer
from tests.support.flipping_server import FlipInterceptor, flipping_server
from tests.support.gateway_fakes import EOS, TOKENIZER_HASH, Script, ScriptedVerifier, output

SCRIPT = Script(text="All work and no play makes Jack a dull boy. " * 25, gamma=3, pause=0.001)
PROMPT = tuple(b"Say it")


@pytest.fixture
async def flips() -> FlipInterceptor:
    return FlipInterceptor(share=0.05, seed=4)


@pytest.fixture
async def pool(flips: FlipInterceptor) -> AsyncIterator[VerifierPool]:
    """Two verifiers with the same output, over connections that corrupt it."""
    async with AsyncExitStack() as stack:
        clients = {}
        for _ in range(2):
            server, address = flipping_server(flips)
            pb_grpc.add_VerifierServiceServicer_to_server(ScriptedServicer(ScriptedVerifier(script=SCRIPT)), server)
            await server.start()
            stack.push_async_callback(server.stop, 0)
            clients[address] = VerifierClient(address)
        made = VerifierPool(TOKENIZER_HASH, GatewayMetrics(CollectorRegistry()))
        made.replace(tuple(map(Endpoint, clients)), clients.__getitem__)
        stack.push_async_callback(made.close)
        watching = asyncio.create_task(made.watch(0.01))
        stack.push_async_callback(cancel_and_wait, watching)
        yield made


class Generation:
    """One generation whose rounds are committed as they arrive."""

    def __init__(self) -> None:
        self.tokens = list(PROMPT)
        self._epochs = count(1)

    @property
    def committed(self) -> int:
        return len(self.tokens) - len(PROMPT)

    async def next_call(self) -> GenerationCall:
        return GenerationCall(
            session_id="s",
            epoch=next(self._epochs),
            tokens=tuple(self.tokens),
            prompt_len=len(PROMPT),
            sampling=SamplingParams(),
            max_tokens=len(output(SCRIPT)),
            stop_token_ids=(EOS,),
            speculation=Speculation(Mode.REJECTION),
        )

    async def generate_at(
        self, verifier: VerifierClient, info: VerifierInfo, call: GenerationCall, seconds: float
    ) -> None:
        check, stream = RoundCheck(call, info.vocab_size), PassStream(verifier)
        try:
            stream.open(Opening(0, call, 10_000, seconds))
            while True:
                rounds, ended = await stream.arrivals.take()
                for verified in rounds.get(0, ()):
                    check.take(verified)
                    self.tokens += verified.tokens
                    if verified.finish is not None:
                        return
                if ended:
                    raise ended[0]
        finally:
            await stream.close()


async def generated(pool: VerifierPool) -> list[int]:
    """Return the output of one generation."""
    failover = Failover(pool, FailoverSettings(attempts=100, seconds=20), GatewayMetrics(CollectorRegistry()))
    first, info = await pool.wait_for_verifier("s", "", 20)
    generation = Generation()
    await failover.run(generation, first, info, time.monotonic() + 60)
    return generation.tokens[len(PROMPT) :]


async def test_no_changed_round_becomes_tokens(pool: VerifierPool, flips: FlipInterceptor) -> None:
    assert await generated(pool) == output(SCRIPT)
    assert len(output(SCRIPT)) > 1000
    assert flips.flips > 5


async def test_control_without_the_check_there_are_wrong_tokens(
    pool: VerifierPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "is_intact", lambda raw: True)
    for _ in range(20):  # most changes make a round invalid, so one generation may have no wrong token
        if await generated(pool) != output(SCRIPT):
            return
    pytest.fail("no token was wrong")
