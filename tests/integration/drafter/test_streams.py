"""Several verifiers at once, verifiers that disappear, and verifiers that stop reading."""

import asyncio

import pytest

from specdec.engine import NativeEngine
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc import checksum
from tests.integration.drafter.reference_drafts import received, reference
from tests.integration.drafter.served_drafter import Serve, Service
from tests.integration.drafter.verifier_by_hand import PATIENCE, PROMPT, Verifier, opening

pytestmark = pytest.mark.integration


async def test_two_verifiers_may_use_the_same_session_name(service: Service, engine: NativeEngine) -> None:
    other = (8, 8, 2, 6)
    async with service.verifier() as one, service.verifier() as two:
        await one.open(opening())
        await two.open(opening(tokens=other))
        assert received(await one.drafts("s", 4)) == reference(engine, 4)
        assert received(await two.drafts("s", 4)) == reference(engine, 4, other)
        assert await service.metric("specdec_drafter_streams") == 2


async def test_a_verifier_that_vanishes_leaves_nothing(service: Service, engine: NativeEngine) -> None:
    async with service.verifier() as stays:
        await stays.open(opening("mine"))
        async with service.verifier() as vanishes:
            await vanishes.open(opening("a"), opening("b"))
            await vanishes.drafts("b", 4)
        await service.until("specdec_drafter_sessions", 1)
        await service.until("specdec_drafter_streams", 1)
        await stays.commit("mine", len(PROMPT), [3])
        await stays.drafts("mine", 4)


async def test_a_verifier_that_is_done_hears_what_was_drafted_for_it(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        await verifier.call.done_writing()
        async with asyncio.timeout(PATIENCE):
            while await verifier.call.read():
                pass
    await service.until("specdec_drafter_sessions", 0)


async def test_a_closed_session_makes_room(serve: Serve) -> None:
    async with serve(max_sessions=1) as service, service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        close = pb.Close(session_id="s", epoch=1)
        await verifier.send(pb.DraftRequest(closes=[close]))
        await verifier.open(opening("t"))
        await verifier.drafts("t", 4)


async def test_a_verifier_that_opens_all_it_can_leaves_another_its_drafts(serve: Serve, engine: NativeEngine) -> None:
    async with (
        serve(max_sessions=6, max_sessions_per_verifier=4) as service,
        service.verifier("greedy") as one,
        service.verifier("greedy") as two,
        service.verifier("modest") as modest,
    ):
        await one.open(*(opening(f"{number}") for number in range(3)))
        await one.drafts("2", 4)
        await two.open(*(opening(f"{number}") for number in range(3)))
        await two.until(lambda: len(two.nacks) == 2)
        await modest.open(opening())
        assert received(await modest.drafts("s", 4)) == reference(engine, 4)
        assert await service.metric("specdec_drafter_sessions") == 5


async def test_a_ping_is_answered_with_its_nonce(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.send(pb.DraftRequest(ping=pb.Ping(nonce=77)))
        await verifier.until(lambda: any(frame.HasField("pong") for frame in verifier.frames))
        assert [frame.pong.nonce for frame in verifier.frames if frame.HasField("pong")] == [77]


async def test_the_load_is_told_without_being_asked(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.until(lambda: any(frame.load.sessions == 1 for frame in verifier.frames))
        assert all(frame.load.step_seconds > 0 for frame in verifier.frames if frame.HasField("load"))


async def test_bytes_sent_are_counted(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        least = sum(frame.ByteSize() - checksum.SIZE for frame in verifier.frames)
        assert await service.metric("specdec_drafter_bytes_sent_total") >= least > 0
        assert await service.metric("specdec_drafter_frames_sent_total") >= len(verifier.frames)


async def test_a_verifier_that_does_not_read_is_not_drafted_for_without_limit(
    serve: Serve, engine: NativeEngine
) -> None:
    """Sending stops when the connection and the outbox are full; another verifier is served throughout."""
    async with serve(support=engine.vocab_size) as service:
        async with service.verifier() as deaf, service.verifier() as hears:
            flood = asyncio.create_task(_ask_on_and_on(deaf))
            counted = -1.0
            async with asyncio.timeout(4 * PATIENCE):
                while (sent := await service.metric("specdec_drafter_tokens_total")) != counted:
                    counted = sent
                    await asyncio.sleep(0.5)
            assert not flood.done()
            flood.cancel()
            await hears.open(opening())
            assert sum(len(chunk.draft.tokens) for chunk in await hears.drafts("s", 4)) == 4
        await service.until("specdec_drafter_streams", 0)
        await service.until("specdec_drafter_sessions", 0)


async def _ask_on_and_on(verifier: Verifier) -> None:
    """Open the same sessions again and again, each time for drafts, and never read one."""
    flat = SamplingParams(temperature=2.0)
    while True:
        await verifier.open(*(opening(f"s{n}", params=flat, gamma=1) for n in range(16)))
