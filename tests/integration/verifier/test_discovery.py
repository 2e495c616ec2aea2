"""The pool has a link to each drafter that the source lists, and to no other."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from prometheus_client import CollectorRegistry

from specdec.serving.discovery import Endpoint, Endpoints
from tests.integration.verifier.draft_scripts import silent
from tests.integration.verifier.house import House
from tests.integration.verifier.scripted_drafter import eventually
from verifier_service.drafts.client import Identity
from verifier_service.drafts.link import DrafterLink
from verifier_service.drafts.pool import DrafterPool
from verifier_service.metrics import VerifierMetrics


class WrittenSource:
    """A source whose snapshots a test writes."""

    age = 0.0

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Endpoints] = asyncio.Queue()

    async def snapshots(self) -> AsyncGenerator[Endpoints]:
        while True:
            yield await self.queue.get()

    def says(self, *addresses: str, draining: tuple[str, ...] = ()) -> None:
        self.queue.put_nowait(tuple(Endpoint(address, draining=address in draining) for address in addresses))


async def test_drafters_come_drain_and_go(house: House) -> None:
    first, second = await house.drafter(silent), await house.drafter(silent)
    registry = CollectorRegistry()
    pool, source = DrafterPool(), WrittenSource()
    identity = Identity("test", house.target.tokenizer_hash)
    make_link = partial(DrafterLink, probe=1.0, metrics=VerifierMetrics(registry))
    task = asyncio.create_task(pool.follow(source, make_link, identity))

    def states() -> dict[str, str]:
        return {each.address: each.state for each in pool.states()}

    source.says(first.address)
    await eventually(lambda: states() == {first.address: "ready"})
    link = pool.choose("s", ())
    source.says(first.address, second.address)
    await eventually(lambda: states() == {first.address: "ready", second.address: "ready"})
    assert link in {pool.choose(f"s{number}", ()) for number in range(20)}, "a drafter that stays keeps its link"
    source.says(first.address, second.address, draining=(first.address,))
    await eventually(lambda: states() == {second.address: "ready"})
    labels = {"address": first.address, "state": "ready"}
    assert registry.get_sample_value("specdec_drafter_up", labels) is None
    source.says()
    await eventually(lambda: states() == {})
    assert pool.choose("s", ()) is None
    task.cancel()
    await asyncio.wait([task])
