"""A verifier with little memory, long prompts and busy passes, over a real connection."""

import asyncio
import threading
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import Tensor

from specdec.engine import Chunk, NativeEngine
from specdec.rules.speculation import Mode
from specdec.serving.rpc.channel import open_channel
from tests.integration.verifier.client import connected, output
from tests.integration.verifier.draft_scripts import oracle
from tests.integration.verifier.house import House
from tests.integration.verifier.target import PROMPT, Target
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

PAGE_TOKENS = 16
PAGE_BYTES = PAGE_TOKENS * 2 * 2 * 2 * 64 * 4
"""2 layers, keys and values, 2 heads of 64 floats each."""
LENGTH = 60


@pytest.fixture
async def wide_house(wide: Target) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(wide, stack)


def prompt(number: int, length: int = 20) -> list[int]:
    return [(7 + 31 * number + 17 * index * index) % 320 for index in range(length)]


async def metric(http: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    body = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{http}/metrics", timeout=60).read().decode())
    return sum(float(line.rpartition(" ")[2]) for line in body.splitlines() if line.startswith(name))


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.REJECTION])
async def test_a_full_pool_costs_time_and_no_token(wide_house: House, wide: Target, mode: Mode, http: str) -> None:
    drafter = await wide_house.drafter(oracle(wide))
    client = await wide_house.verifier(drafter, kv_bytes=12 * PAGE_BYTES, http=http)
    found = await asyncio.gather(
        *(client.rounds(prompt(n), session=f"s{n}", mode=mode, gamma=3, max_tokens=LENGTH) for n in range(8))
    )
    assert [output(rounds) for rounds in found] == [wide.greedy(prompt(n), LENGTH) for n in range(8)]
    assert await metric(http, "specdec_preemptions_total") > 0
    assert await metric(http, 'specdec_kv_cache_bytes{state="live"}') == 0
    assert await metric(http, 'specdec_kv_cache_bytes{state="cached"}') > 0
    assert await metric(http, 'specdec_kv_cache_bytes{state="budget"}') == 12 * PAGE_BYTES


async def test_the_next_turn_of_a_chat_computes_what_is_new(wide_house: House, wide: Target, http: str) -> None:
    client = await wide_house.verifier(kv_bytes=1000 * PAGE_BYTES, http=http)
    turn = prompt(1, 100)
    for expected in (0, 144, 192):
        found = await metric(http, "specdec_prefix_cache_hits_total")
        said = output(await client.rounds(turn, session="chat", mode=Mode.OFF, max_tokens=50))
        assert said == wide.greedy(turn, 50)
        assert await metric(http, "specdec_prefix_cache_hits_total") - found == expected
        turn = [*turn, *said]


async def test_callers_with_another_salt_share_nothing(wide_house: House, http: str) -> None:
    client = await wide_house.verifier(http=http)
    for session, salt, found in (("a", "alice", 0), ("b", "bob", 0), ("c", "alice", 96)):
        before = await metric(http, "specdec_prefix_cache_hits_total")
        await client.rounds(prompt(1, 100), session=session, salt=salt, max_tokens=1)
        assert await metric(http, "specdec_prefix_cache_hits_total") - before == found


async def test_a_context_of_eight_thousand_tokens_is_served_beside_short_ones(wide_house: House, wide: Target) -> None:
    client = await wide_house.verifier(kv_bytes=1200 * PAGE_BYTES)
    long = prompt(3, 8192)
    text, *short = await asyncio.gather(
        client.rounds(long, session="long", mode=Mode.OFF, max_tokens=12),
        *(client.rounds(prompt(n), session=f"s{n}", mode=Mode.OFF, max_tokens=LENGTH) for n in range(2)),
    )
    assert output(text) == wide.greedy(long, 12)
    assert [output(rounds) for rounds in short] == [wide.greedy(prompt(n), LENGTH) for n in range(2)]


async def test_health_answers_while_a_pass_runs(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    forward = NativeEngine.forward

    def slow(engine: NativeEngine, chunks: Sequence[Chunk]) -> Tensor:
        began.set()
        assert go_on.wait(60)
        return forward(engine, chunks)

    monkeypatch.setattr(NativeEngine, "forward", slow)
    given = {"model": {"path": target.folder, "device": "cpu"}, "address": "127.0.0.1:0"}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(verifier(VerifierSettings.load(None, given)))
        client = await stack.enter_async_context(connected(server.address))
        channel = await stack.enter_async_context(open_channel(server.address))
        generating = asyncio.create_task(client.rounds(mode=Mode.OFF, max_tokens=3))
        assert await asyncio.to_thread(began.wait, 60)
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert (await client.info()).vocab_size == 320
        assert not generating.done()
        go_on.set()
        assert output(await generating) == target.greedy(PROMPT, 3)
