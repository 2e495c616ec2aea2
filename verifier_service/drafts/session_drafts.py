"""One session's drafts, from the drafter that serves it now; whatever happens to the drafter, the session goes on."""

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from specdec.serving.telemetry.tracing import TRACEPARENT, trace_headers
from specdec.wire.draft import DraftTokens
from specdec.wire.generation import Fallback, GenerationCall
from specdec.wire.session import Close, Commit, NackReason, Open, TreePlan
from verifier_service.backends.batch_plan import Gathers
from verifier_service.config import DraftingSettings
from verifier_service.drafts.breaker import Breaker
from verifier_service.drafts.draft_buffer import MOST_DRAFTS, DraftBuffer, TreeBuffer, checked
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.link import DrafterLink
from verifier_service.drafts.pool import DrafterPool

_CATCH_UP = 8
"""Tokens of earlier rounds that a drafter may have missed and is waited for. Sessions that want drafts again mostly do
so together, so that it reads for all of them before it drafts; plain passes go on meanwhile."""


@dataclass(slots=True)
class _AwaitedDraft:
    """The draft of the round that was requested."""

    link: DrafterLink | None
    """Of its drafter; None where there was none."""
    gamma: int
    since: float
    patient: bool
    """Whether the pass waits for it as long as that pays; else it takes what has come when the pass begins."""
    kind: str = ""
    distance: float = 0.0
    waits: bool = False
    until: float = math.inf
    """When the wait ends, whatever comes."""
    hangs: bool = False
    """Whether a drafter that does not answer until then has had the longest wait of the settings."""
    hurried: bool = False


class RemoteDrafts(Drafts):
    """Drafts of one session from the drafter that the pool chooses; a Listener of that drafter's link."""

    def __init__(  # noqa: PLR0913 - the parts of a session
        self,
        call: GenerationCall,
        max_len: int,
        vocab_size: int,
        pool: DrafterPool,
        settings: DraftingSettings,
        patience: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        plan: TreePlan | None = None,
    ) -> None:
        """Make a source that is not open at any drafter yet.

        Args:
            max_len: tokens that the sequence may reach.
            vocab_size: ids of the target; a draft with another is refused.
            settings: how long to wait at most, and when to try again.
            patience: seconds for which a wait pays now; None for a session whose γ is fixed, which waits for it
                whatever that costs.
            clock: gives seconds.
            plan: how trees are made, one a round and none ahead of a verdict; None asks for chains.
        """
        self._call = call
        self._max_len = max_len
        self._vocab_size = vocab_size
        self._pool = pool
        self._settings = settings
        self._worth = patience
        self._clock = clock
        self._plan = plan
        self._buffer = (DraftBuffer if plan is None else TreeBuffer)(call.tokens, MOST_DRAFTS)
        self._patience = Breaker(1, settings.probe)
        self._link: DrafterLink | None = None
        self._unsent: tuple[int, ...] = ()
        """Committed tokens that the drafter does not know yet."""
        self._answers = Answers()
        self._behind: list[int] = []
        """Committed tokens that the buffer has not been told, because it had no drafts and none were wanted."""
        self._avoided = Avoided(settings, clock)
        self._changed: Callable[[], object] = lambda: None
        self._awaited: _AwaitedDraft | None = None

    @property
    def gathers(self) -> Gathers:
        """Not for a drafter that still reads the committed tokens, or that had no draft when it answered last."""
        if self._worth is None:
            return Gathers.BRIEFLY
        return Gathers.ALWAYS if self._link is not None and self._answers.promise else Gathers.NOT

    @property
    def epoch(self) -> int:
        return self._call.epoch

    def begin(self, gamma: int) -> None:
        if gamma:
            self._open(gamma)

    def source(self) -> str | None:
        link = self._link or self._choice()
        if link is None:
            return None
        return link.source(self._call.sampling.temperature) + ("" if self._plan is None else ", trees")

    def declined(self) -> Fallback:
        there = self._link is not None or self._pool.has(self._avoided.addresses(), self._call.speculation.drafter)
        return Fallback.NOT_WORTH_IT if there else self._absence()

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        """Begin a wait until there are γ drafts, or no more come, or waiting pays no more.

        A round for which the pass does not wait takes what has come when the pass begins.
        """
        self._changed, self._awaited = changed, None
        if gamma == 0:
            return
        self._open(gamma)
        link, now = self._link, self._clock()
        patient = self.gathers is not Gathers.NOT
        self._awaited = awaited = _AwaitedDraft(link, gamma, now, patient)
        if link is None:
            return
        awaited.kind, awaited.distance = link.kind, link.distance
        if self._complete(gamma):
            return
        if not patient:
            awaited.waits = True
        elif self._patience.allows(now) and link.breaker.allows(now):
            worth = math.inf if self._worth is None else self._worth()
            awaited.waits, awaited.hangs = True, worth >= self._settings.timeout
            awaited.until = now + min(self._settings.timeout, worth)

    def proposal(self) -> Proposal | None:
        awaited = self._awaited
        if awaited is None:
            return Proposal()
        if awaited.link is None:
            return Proposal(fallback=self._absence())
        if awaited.waits and not self._is_over(awaited, awaited.link):
            return None
        gamma = awaited.gamma
        draft = self._buffer.take(gamma)
        reason = Fallback.NONE if draft.tokens else self._reason(awaited.patient)
        waited_for = len(draft.tokens) if self._complete(gamma) else gamma
        waited = self._clock() - awaited.since
        network = min(waited, awaited.distance)
        asked = waited_for if awaited.patient else 0
        return Proposal(draft, reason, waited, asked, awaited.kind, network=network)

    @property
    def patience(self) -> float:
        return math.inf if self._awaited is None else max(self._awaited.until - self._clock(), 0.0)

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Commit in the buffer and at the drafter; with γ = 0 the drafter learns of it when drafts are wanted again."""
        if self._link is None or not (gamma or judged or len(self._buffer)):
            self._behind += tokens
            return
        self._catch_up()
        if not self._buffer.advance(tokens, judged):
            self.close()
            return
        self._answers.committed(missed=len(self._unsent))
        self._unsent += tuple(tokens)
        if gamma:
            base_len = self._buffer.committed_len - len(self._unsent)
            self._link.commit(Commit(self._call.session_id, self.epoch, base_len, self._unsent, gamma))
            self._unsent = ()

    def hurry(self) -> None:
        """End a wait for which the next pass does not wait."""
        if self._awaited is not None:
            self._awaited.hurried = True

    def distrust(self) -> None:
        """Leave this drafter and never come back."""
        if self._link is not None:
            self._link.malformed(self._call.session_id, self.epoch, "the draft could not be verified")

    def close(self) -> None:
        """End the session at the drafter; a round that wants drafts opens it again."""
        if self._link is not None:
            self._link.close(Close(self._call.session_id, self.epoch))
            self.lost()

    def drafted(self, message: DraftTokens) -> None:
        """Take drafted tokens if they continue this session's; raises what `checked` does."""
        draft = checked(message.draft, self._call.speculation.mode, self._plan, self._vocab_size)
        message = replace(message, draft=draft)
        self._answers.drafted(message)
        if self._buffer.add(message):
            self._avoided.known()
            self._patience.succeeded()
            self._changed()

    def ended(self, length: int) -> None:
        """Note that no drafts come behind `length`, so that a wait ends when all up to it have come."""
        self._answers.ended(length)
        self._changed()

    def refused(self, reason: NackReason) -> None:
        """Avoid this drafter for a time that depends on the reason."""
        if self._link is not None:
            self._avoided.add(self._link.address, reason)
        self.lost()

    def lost(self) -> None:
        """Go on without this drafter and its drafts."""
        self._link = None
        self._buffer.clear()
        self._changed()

    def _open(self, gamma: int) -> None:
        """Open the session at a drafter unless it is open; without effect when there is none."""
        if self._link is not None:
            return
        self._link = self._choice()
        if self._link is None:
            return
        call = self._call
        rounds = self._pool.rounds(self._link.source(call.sampling.temperature))
        outcomes = self._link.wanted_outcomes(self._settings.outcomes, rounds, gamma)
        self._catch_up()
        self._unsent, self._answers = (), Answers()
        opening = Open(
            call.session_id, call.epoch, self._buffer.committed, call.prompt_len, call.sampling, call.speculation.mode,
            gamma, self._max_len, call.cache_salt, trace_headers().get(TRACEPARENT, ""), call.speculation.policy,
            self._plan, outcomes if self._plan is None else 0,
        )  # fmt: skip
        self._link.open(opening, self)

    def _catch_up(self) -> None:
        """Tell the buffer what it has not been told."""
        if self._behind:
            self._buffer.advance(self._behind, 0)
            self._unsent += tuple(self._behind)
            self._behind.clear()

    def _choice(self) -> DrafterLink | None:
        """The drafter that the session would use now."""
        return self._pool.choose(self._call.session_id, self._avoided.addresses(), self._call.speculation.drafter)

    def _complete(self, gamma: int) -> bool:
        """Whether γ drafts have come, or all that will."""
        buffer = self._buffer
        return buffer.holds(gamma) or self._answers.complete(buffer.committed_len, buffer.end)

    def _is_over(self, awaited: "_AwaitedDraft", link: DrafterLink) -> bool:
        """Whether the wait for a draft has ended; what it shows of the drafter is noted."""
        if self._link is link and not self._complete(awaited.gamma):
            if not awaited.patient:
                return awaited.hurried
            if (now := self._clock()) < awaited.until:
                return False
            if awaited.hangs or not len(self._buffer):
                self._patience.failed(now)
            if awaited.hangs:
                link.breaker.failed(now)
        elif awaited.patient:
            link.breaker.succeeded()
        awaited.waits = False
        return True

    def _reason(self, patient: bool) -> Fallback:
        """Why a session that was open has no draft."""
        if self._link is None:
            return self._absence()
        if self._complete(1) or not (patient or self._answers.matching):
            return Fallback.NO_MATCH
        return Fallback.LATE if patient else Fallback.FIRST_ROUND

    def _absence(self) -> Fallback:
        """Why no drafter can be used."""
        return Fallback.OVERLOADED if self._avoided.overloaded else self._pool.absence()


class Avoided:
    """Addresses of drafters that have refused one session."""

    def __init__(self, settings: DraftingSettings, clock: Callable[[], float]) -> None:
        """`settings` say for how long; `clock` gives seconds."""
        self._settings = settings
        self._clock = clock
        self._until: dict[str, tuple[float, Fallback]] = {}
        """Until when to avoid each drafter, and why, by address."""
        self._forgotten = 0
        """How often in a row a drafter did not know the session."""

    def addresses(self) -> Container[str]:
        """Those that are avoided now."""
        if self._until:
            now = self._clock()
            self._until = {address: until for address, until in self._until.items() if until[0] > now}
        return self._until

    @property
    def overloaded(self) -> bool:
        """Whether one of them had no room."""
        return Fallback.OVERLOADED in {reason for _, reason in self._until.values()}

    def add(self, address: str, reason: NackReason) -> None:
        """Avoid a drafter that has refused the session, for a time that depends on the reason."""
        now, pause = self._clock(), self._settings.overload_pause
        match reason:
            case NackReason.OVERLOADED:
                self._until[address] = now + pause, Fallback.OVERLOADED
            case NackReason.MALFORMED:
                self._until[address] = math.inf, Fallback.UNAVAILABLE
            case NackReason.INTERNAL:
                self._until[address] = now + pause, Fallback.UNAVAILABLE
            case NackReason.UNKNOWN | NackReason.STALE:
                # The first time, opening the session again helps; after that it is tried less and less often.
                self._forgotten += 1
                pause = self._settings.probe * 2.0 ** min(self._forgotten - 2, 6) if self._forgotten > 1 else 0.0
                self._until[address] = now + pause, Fallback.UNAVAILABLE

    def known(self) -> None:
        """Note that a drafter knows the session."""
        self._forgotten = 0


class Answers:
    """The answers of one drafter for one session, from the time when the session was opened there."""

    def __init__(self) -> None:
        """Begin with a drafter that has not answered."""
        self.caught_up = False
        """Whether the drafter has read the session."""
        self.matching = True
        """Whether the drafter had a draft when it answered last."""
        self._ended: int | None = None
        """The prefix length for which no more drafts come."""
        self._drafted_to = 0
        """Where the draft that came since the last commit ended; 0 where none came."""

    @property
    def promise(self) -> bool:
        """Whether a draft is to be expected of the next answer."""
        return self.caught_up and self.matching

    def drafted(self, message: DraftTokens) -> None:
        """Note a draft, of whatever prefix."""
        self.caught_up = self.matching = True
        self._drafted_to = message.base_len + len(message.draft.tokens)

    def ended(self, length: int) -> None:
        """Note that no drafts come behind `length` tokens, committed and drafted."""
        self._ended, self.caught_up = length, True
        self.matching = self._drafted_to == length

    def committed(self, missed: int) -> None:
        """Note that the answers so far were made for fewer committed tokens.

        Args:
            missed: tokens of earlier rounds that the drafter has not been told; it reads them before it drafts.
        """
        self._drafted_to = 0
        self.caught_up = self.caught_up and missed <= _CATCH_UP

    def complete(self, committed: int, end: int) -> bool:
        """Whether no more drafts come behind `committed` tokens and their drafts, which reach up to `end`."""
        return self._ended is not None and committed <= self._ended <= end
