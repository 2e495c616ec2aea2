"""A round that waits for its draft, as in the loop."""

import asyncio
import math
from contextlib import suppress

from tests.support.clock import Clock
from verifier_service.drafts.drafts import Drafts, Proposal


class WaitingRound:
    """Requests a draft, and checks for it after each change and at the end of the wait."""

    def __init__(self, drafts: Drafts, gamma: int, clock: Clock | None = None) -> None:
        """Request the draft. `clock`, if given, advances after real time has passed."""
        self._drafts = drafts
        self._clock = clock
        self._stirred = asyncio.Event()
        drafts.request(gamma, self._stirred.set)

    def stop_waiting(self) -> None:
        """Start the next pass without waiting for the round."""
        self._drafts.stop_waiting()
        self._stirred.set()

    async def proposal(self) -> Proposal:
        """Return the draft once the wait is over."""
        while (proposal := self._drafts.proposal()) is None:
            self._stirred.clear()
            patience = self._drafts.patience
            with suppress(TimeoutError):
                async with asyncio.timeout(None if patience == math.inf else patience):
                    await self._stirred.wait()
                    continue
            if self._clock is not None:
                self._clock.now += patience
        return proposal


async def proposed(drafts: Drafts, gamma: int) -> Proposal:
    """Return the proposal for a round that requests γ drafts."""
    return await WaitingRound(drafts, gamma).proposal()
