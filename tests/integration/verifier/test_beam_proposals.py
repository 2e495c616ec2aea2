"""A verifier asks for beams over the one connection that it has to a drafter."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.wire.beams import BeamAsk, ProposedBeam, proposal_to_pb
from tests.integration.verifier.scripted_drafter import RunningDrafter, ScriptedDrafter, eventually
from verifier_service.drafts.client import DrafterClient, Identity, LinkBroken, LinkTimes
from verifier_service.drafts.link import DrafterLink, LinkState
from verifier_service.metrics import VerifierMetrics

HASH = "a tokenizer"
ASK = BeamAsk(HASH, (1, 2, 3), (((), 0.0),), width=2, steps=1)
BEAMS = (ProposedBeam(0, 4), ProposedBeam(0, 5))


@dataclass
class BeamDrafter(ScriptedDrafter):
    """Proposes BEAMS, or holds the call while `holds`, and records who calls."""

    holds: bool = False
    peers: set[str] = field(default_factory=set)
    calls: int = 0

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Any) -> AsyncIterator[pb.DraftResponse]:
        self.peers.add(context.peer())
        async for response in super().Draft(requests, context):
            yield response

    async def DraftBeams(self, request: pb.DraftBeamsRequest, context: Any) -> pb.DraftBeamsResponse:
        self.peers.add(context.peer())
        self.calls += 1
        if self.holds:
            await asyncio.Event().wait()
        return proposal_to_pb(BEAMS)


@pytest.fixture
def servicer() -> BeamDrafter:
    return BeamDrafter(lambda seen, gamma: [], tokenizer_hash=HASH)


@pytest.fixture
async def drafter(servicer: BeamDrafter) -> AsyncIterator[RunningDrafter]:
    running = await RunningDrafter.start(servicer)
    yield running
    await running.server.stop(0)


@pytest.fixture
async def link(drafter: RunningDrafter) -> AsyncIterator[DrafterLink]:
    """A link that is ready."""
    made = DrafterLink(drafter.address, 1.0, VerifierMetrics(CollectorRegistry()))
    running = asyncio.create_task(DrafterClient(made, Identity("v", HASH), LinkTimes(first_retry=0.01)).run())
    await eventually(lambda: made.state is LinkState.READY)
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_searches_share_the_connection_of_the_stream(link: DrafterLink, servicer: BeamDrafter) -> None:
    assert link.propose_beams is not None
    found = await asyncio.gather(*(link.propose_beams(ASK, 10) for _ in range(20)))
    assert found == [BEAMS] * 20
    assert servicer.calls == 20
    assert len(servicer.peers) == 1


async def test_a_call_in_flight_fails_with_the_connection(link: DrafterLink, servicer: BeamDrafter) -> None:
    """A closed channel cancels its calls, which must not end the search that waits."""
    servicer.holds = True
    assert link.propose_beams is not None
    waiting = asyncio.create_task(link.propose_beams(ASK, 10))  # type: ignore[arg-type]
    await eventually(lambda: servicer.calls == 1)
    servicer.dies_after = 0
    link.outbox.ping(1)
    with pytest.raises(LinkBroken):
        await waiting
    await eventually(lambda: link.propose_beams is not None)


async def test_without_a_connection_nothing_is_asked(link: DrafterLink, drafter: RunningDrafter) -> None:
    await drafter.server.stop(0)
    await eventually(lambda: link.state is not LinkState.READY)
    assert link.propose_beams is None


async def test_a_late_answer_is_cancelled_at_the_drafter(link: DrafterLink, servicer: BeamDrafter) -> None:
    servicer.holds = True
    assert link.propose_beams is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await link.propose_beams(ASK, 10)
    servicer.holds = False
    assert await link.propose_beams(ASK, 10) == BEAMS
