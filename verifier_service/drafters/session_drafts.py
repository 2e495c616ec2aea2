"""Where one session's drafts come from; whatever happens to the drafter, the session goes on."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Commit, Open
from verifier_service.batching.costs import DraftCost
from verifier_service.config import DraftingSettings
from verifier_service.drafters.breaker import Breaker
from verifier_service.drafters.draft_buffer import DraftBuffer
from verifier_service.drafters.drafts import Proposal
from verifier_service.drafters.link import DrafterLink
from verifier_service.drafters.listener import Refusal
from verifier_service.drafters.pool import DrafterPool
from verifier_service.generation.job import Job
from verifier_service.generation.rounds import Fallback

_CHAIN_LIMIT = 128
"""Most drafts held for one session: no drafter of this protocol comes near."""


@dataclass(frozen=True, slots=True)
class Price:
    """What waiting for drafts costs, and what it is worth."""

    costs: DraftCost
    """Where waits are noted."""
    worth: Callable[[int, int], float]
    """Seconds of waiting that γ drafts are worth, given how many are there."""


class RemoteDrafts:
    """Drafts of one session from whichever drafter serves it now; a Listener of that drafter's link."""

    def __init__(
        self,
        job: Job,
        max_len: int,
        pool: DrafterPool,
        settings: DraftingSettings,
        price: Price,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a source that is not open anywhere yet.

        Args:
            job: what the session is.
            max_len: length the sequence may reach.
            pool: the drafters.
            settings: how long to wait at most, and when to try again.
            price: of waiting.
            clock: seconds.
        """
        self._job = job
        self._max_len = max_len
        self._pool = pool
        self._settings = settings
        self._price = price
        self._clock = clock
        self._chain = DraftBuffer(job.tokens, _CHAIN_LIMIT)
        self._patience = Breaker(1, settings.probe)
        self._link: DrafterLink | None = None
        self._unsent: tuple[int, ...] = ()
        self._ended: int | None = None
        self._strikes = 0
        self._avoid: dict[str, tuple[float, Fallback]] = {}
        self._news = asyncio.Event()

    @property
    def epoch(self) -> int:
        """The session's fencing number."""
        return self._job.epoch

    def begin(self, gamma: int) -> None:
        """Open the session at a drafter, when there is one."""
        if gamma:
            self._bind(gamma)

    async def propose(self, gamma: int, *, patient: bool) -> Proposal:
        """Take what is there, after a wait for `gamma` drafts that ends when no more come or it is worth no more."""
        if gamma == 0:
            return Proposal()
        self._bind(gamma)
        if self._link is None:
            return Proposal(fallback=self._absence())
        started = self._clock()
        waits = patient and not self._complete(gamma) and self._may_wait(self._link, started)
        if waits:
            await self._wait(self._link, gamma)
        draft = self._chain.take(gamma)
        waited = self._clock() - started
        if draft.tokens and patient:
            self._price.costs.observe(len(draft.tokens), waited)
        return Proposal(draft, Fallback.NONE if draft.tokens else self._reason(patient), waited)

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Advance the chain and send the verdict; with gamma 0 it is kept until drafts are wanted again."""
        in_step = self._chain.advance(tokens, judged)
        if self._link is None:
            return
        if not in_step:
            self._leave()
            return
        self._unsent += tuple(tokens)
        if gamma:
            base_len = self._chain.committed_len - len(self._unsent)
            self._link.commit(Commit(self._job.session_id, self.epoch, base_len, self._unsent, gamma))
            self._unsent = ()

    def distrust(self) -> None:
        """Stay away from this drafter for good."""
        if self._link is not None:
            self._link.malformed(self._job.session_id, self.epoch, "the draft could not be verified")

    def close(self) -> None:
        """Tell the drafter."""
        if self._link is not None:
            self._leave()

    def drafted(self, message: DraftTokens) -> None:
        """Take the tokens if they continue this session's."""
        if self._chain.add(message):
            self._strikes = 0
            self._patience.succeeded()
            self._news.set()

    def ended(self, length: int) -> None:
        """Stop waiting once everything up to `length` is here."""
        self._ended = length
        self._news.set()

    def refused(self, reason: Refusal) -> None:
        """Go elsewhere, or come back later."""
        if self._link is not None:
            self._avoid[self._link.address] = self._penalty(reason)
        self.lost()

    def lost(self) -> None:
        """Go on without."""
        self._link = None
        self._chain.clear()
        self._news.set()

    def _bind(self, gamma: int) -> None:
        if self._link is not None:
            return
        now = self._clock()
        self._avoid = {address: until for address, until in self._avoid.items() if until[0] > now}
        self._link = self._pool.choose(self._job.session_id, self._avoid)
        if self._link is None:
            return
        job, tokens = self._job, self._chain.committed
        self._unsent, self._ended = (), None
        opening = Open(
            job.session_id,
            job.epoch,
            tokens,
            job.prompt_len,
            job.params,
            job.rule,
            gamma,
            self._max_len,
            job.cache_salt,
        )
        self._link.open(opening, self)

    def _leave(self) -> None:
        if self._link is not None:
            self._link.close(Close(self._job.session_id, self.epoch))
        self.lost()

    def _complete(self, gamma: int) -> bool:
        ended = self._ended is not None and self._chain.committed_len <= self._ended <= self._chain.end
        return ended or len(self._chain) >= gamma

    def _may_wait(self, link: DrafterLink, now: float) -> bool:
        return self._patience.allows(now) and link.breaker.allows(now)

    async def _wait(self, link: DrafterLink, gamma: int) -> None:
        worth = self._price.worth(len(self._chain), gamma)
        try:
            async with asyncio.timeout(min(self._settings.timeout, worth)):
                while self._link is link and not self._complete(gamma):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            hangs = worth >= self._settings.timeout
            if hangs or not len(self._chain):
                self._patience.failed(self._clock())
            if hangs:
                link.breaker.failed(self._clock())
        else:
            link.breaker.succeeded()

    def _reason(self, patient: bool) -> Fallback:
        """Why an open session has no draft."""
        if self._link is None:
            return self._absence()
        if self._complete(1):
            return Fallback.UNAVAILABLE
        return Fallback.TIMEOUT if patient else Fallback.NONE

    def _absence(self) -> Fallback:
        reasons = {reason for _, reason in self._avoid.values()}
        return Fallback.OVERLOADED if Fallback.OVERLOADED in reasons else self._pool.absence()

    def _penalty(self, reason: Refusal) -> tuple[float, Fallback]:
        """Until when to stay away after a refusal, and what to call it."""
        now = self._clock()
        match reason:
            case Refusal.OVERLOADED:
                return now + self._settings.overload_pause, Fallback.OVERLOADED
            case Refusal.MALFORMED:
                return math.inf, Fallback.UNAVAILABLE
            case Refusal.INTERNAL:
                return now + self._settings.overload_pause, Fallback.UNAVAILABLE
            case Refusal.UNKNOWN | Refusal.STALE:
                # The first time, opening again is the cure; after that it is tried less and less often.
                self._strikes += 1
                pause = self._settings.probe * 2.0 ** min(self._strikes - 2, 6) if self._strikes > 1 else 0.0
                return now + pause, Fallback.UNAVAILABLE
