"""One session, its links to drafters, and the messages sent over them."""

import asyncio
from collections.abc import Callable

from specdec.rules.speculation import Mode, Speculation
from tests.support.clock import Clock
from tests.unit.verifier_service.drafts.proposing import WaitingRound
from tests.unit.verifier_service.verifier_fakes import chunk_after, make_call, make_metrics
from verifier_service.config import DraftingSettings
from verifier_service.drafts.drafts import Proposal
from verifier_service.drafts.link import DrafterLink, Frame
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.session_drafts import RemoteDrafts

PROMPT = (1, 2, 3)
SETTINGS = DraftingSettings(timeout=0.02, probe=100.0, overload_pause=50.0)
PATIENT = DraftingSettings(timeout=60.0, probe=100.0)


class Scene:
    """A session, its links, and the messages sent over them."""

    def __init__(
        self,
        links: int = 1,
        settings: DraftingSettings = PATIENT,
        ready: bool = True,
        worth: float | None = None,
        *,
        features: bool = False,
    ) -> None:
        self.clock = Clock(1000.0)
        self.links = [DrafterLink(f"d{index}:1", 100.0, make_metrics()) for index in range(links)]
        for link in self.links if ready else ():
            link.connected("small", 0.001)
            link.reads_features = features
        self.pool = DrafterPool(self.links)
        call = make_call(tokens=PROMPT, speculation=Speculation(Mode.REJECTION))
        self.worth = worth
        """Maximum time that a wait pays for, in seconds. None at first for a fixed γ."""
        patience = None if worth is None else lambda: self.worth
        self.drafts = RemoteDrafts(call, 20, 100, self.pool, settings, patience, self.clock, features=features)

    @property
    def link(self) -> DrafterLink:
        return self.links[0]

    async def propose(self, gamma: int = 2) -> Proposal:
        """Return the draft of a round whose pass begins at once, unless it waits for the round."""
        self.round = WaitingRound(self.drafts, gamma, self.clock)
        asyncio.get_running_loop().call_soon(self.round.stop_waiting)
        return await self.round.proposal()

    def caught_up(self) -> None:
        """Deliver one outdated draft from each drafter."""
        self.drafts.begin(2)
        for link in self.links:
            link.drafted(chunk_after((9, 9, 9)))

    async def sent(self, link: DrafterLink | None = None) -> Frame:
        return await (link or self.link).outbox.take()

    async def waiting(self, gamma: int = 2) -> "asyncio.Task[Proposal]":
        self.round = WaitingRound(self.drafts, gamma, self.clock)
        task = asyncio.create_task(self.round.proposal())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        return task

    async def hurried(self) -> Proposal:
        """Return the proposal of a round that gets no draft before the next pass begins."""
        return await self.after(self._hurry)

    def _hurry(self) -> None:
        self.round.stop_waiting()

    async def after(self, event: Callable[[], None], gamma: int = 2) -> Proposal:
        """Return the proposal that a waiting round gets after `event` happens."""
        task = await self.waiting(gamma)
        event()
        return await task
