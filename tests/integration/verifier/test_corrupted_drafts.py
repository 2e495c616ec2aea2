"""Drafts corrupted on the way to the verifier are dropped with their link, and the link is opened again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.protos.drafter.v1 import drafter_pb2_grpc
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc import checksum
from specdec.wire.draft import DraftTokens
from specdec.wire.session import NackReason, Open
from tests.integration.verifier.scripted_drafter import ScriptedDrafter, Seen, drafts
from tests.support.flipping_server import FlipInterceptor, flipping_server
from verifier_service.drafts.client import DrafterClient, Identity, LinkTimes
from verifier_service.drafts.link import DrafterLink, LinkState
from verifier_service.metrics import VerifierMetrics

GAMMA = 5
ENOUGH = 1000
"""Number of tokens that must arrive."""
HASH = "c0ffee"


class Recorder:
    """Records all messages of one session."""

    epoch = 1

    def __init__(self) -> None:
        self.chunks: list[DraftTokens] = []

    def drafted(self, chunk: DraftTokens) -> None:
        self.chunks.append(chunk)

    def ended(self, length: int) -> None:
        return

    def refused(self, reason: NackReason) -> None:
        return

    def lost(self) -> None:
        return


def sevens(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    return [drafts(seen, [7] * gamma)]


@pytest.fixture
def drafter() -> ScriptedDrafter:
    return ScriptedDrafter(sevens, tokenizer_hash=HASH)


@pytest.fixture
async def link(drafter: ScriptedDrafter) -> AsyncIterator[DrafterLink]:
    """A link to the drafter over a connection that corrupts one response of twenty."""
    server, address = flipping_server(FlipInterceptor(share=0.05, seed=9))
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)
    await server.start()
    made = DrafterLink(address, 1.0, VerifierMetrics(CollectorRegistry()))
    times = LinkTimes(first_retry=0.01, last_retry=0.05, refused_retry=0.05)
    running = asyncio.create_task(DrafterClient(made, Identity("v", HASH), times).run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop(0)


async def draft(link: DrafterLink) -> list[DraftTokens]:
    """Open sessions one after the other until enough drafts have arrived, and return the drafts."""
    recorder, numbers = Recorder(), count()
    async with asyncio.timeout(60):
        while len(recorder.chunks) * GAMMA < ENOUGH:
            if link.state is LinkState.READY:
                name = f"s{next(numbers)}"
                link.open(Open(name, 1, (1, 2, 3), 2, SamplingParams(), Mode.REJECTION, GAMMA, 64), recorder)
            await asyncio.sleep(0.002)
    return recorder.chunks


def is_good(chunk: DraftTokens) -> bool:
    probs = chunk.draft.probs
    return (
        chunk.draft.tokens == (7,) * GAMMA
        and chunk.base_len == 3
        and all(row.ids.tolist() == [7] and row.weights.tolist() == [1] for row in probs)
    )


async def test_only_drafts_as_they_were_sent_arrive(link: DrafterLink, drafter: ScriptedDrafter) -> None:
    assert all(map(is_good, await draft(link)))
    assert drafter.streams > 3, "no frame was changed: the link was never made anew"


async def test_control_without_the_check_changed_drafts_arrive(
    link: DrafterLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "is_intact", lambda raw: True)
    assert not all(map(is_good, await draft(link)))
