"""Drafts of one session from a remote drafter. The session continues when the drafter fails."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdec.serving.telemetry.request_ids import current_request_id
from specdec.serving.telemetry.tracing import TRACEPARENT, trace_headers
from specdec.wire.draft import DraftTokens
from specdec.wire.features import Features
from specdec.wire.generation import Fallback, GenerationCall
from specdec.wire.session import Close, Commit, DraftEnd, NackReason, Open, TreePlan
from verifier_service.backends.batch_plan import Gathers
from verifier_service.config import DraftingSettings
from verifier_service.drafts.draft_buffer import MOST_DRAFTS, DraftBuffer, TreeBuffer, checked
from verifier_service.drafts.drafts import Drafts, Proposal
from verifier_service.drafts.feature_window import FeatureWindow
from verifier_service.drafts.link import Breaker, DrafterLink
from verifier_service.drafts.pool import AvoidedDrafters, DrafterPool

_CATCH_UP = 8
"""Most tokens of earlier rounds that a drafter may have missed while passes still wait for its drafts. Sessions often
resume drafting together, and the drafter reads for all of them before it drafts. Plain passes continue meanwhile."""


@dataclass(slots=True)
class _AwaitedDraft:
    """State of the draft requested for the current round."""

    link: DrafterLink | None
    """Link to the drafter; None if the session had none."""
    gamma: int
    since: float
    patient: bool
    """Whether the pass waits for the draft while that pays. If not, the round uses the drafts present at its start."""
    kind: str = ""
    distance: float = 0.0
    waits: bool = False
    until: float = math.inf
    """Deadline of the wait."""
    hangs: bool = False
    """Whether the deadline is the timeout of the settings, so that a drafter that misses it counts as hung."""
    hurried: bool = False


class RemoteDrafts(Drafts):
    """Drafts of one session from the drafter that the pool chooses. Acts as the Listener of that drafter's link."""

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
        *,
        features: bool = False,
    ) -> None:
        """Create the drafts of a session that is not open at any drafter.

        Args:
            max_len: length that the sequence may reach, in tokens.
            vocab_size: size of the target's vocabulary. Drafts with larger ids are refused.
            settings: timeouts and retry intervals.
            patience: returns the seconds for which a wait pays now. None if γ is fixed: such a session waits
                up to the timeout.
            clock: returns the time in seconds.
            plan: shape of the trees; None requests chains. The drafter makes one tree a round, never ahead of a
                verdict.
            features: whether the target's features are known, for drafters that read them.
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
        """Committed tokens not yet sent to the drafter."""
        self._answers = DrafterAnswers()
        self._unread: list[int] = []
        """Committed tokens not yet added to the buffer, because it had no drafts and none were requested."""
        self._avoided_drafters = AvoidedDrafters(settings, clock)
        self._changed: Callable[[], object] = lambda: None
        self._awaited: _AwaitedDraft | None = None
        self._window: FeatureWindow | None = None
        """Features of the last tokens; None before the first."""
        self._reads_states = features
        self._lacks_features = False
        """Whether the session is not open because its drafter reads features, and some are not known."""

    @property
    def gathers(self) -> Gathers:
        """Passes do not wait for a drafter that still reads committed tokens or features, or had no draft in its last
        answer."""
        if self._worth is None:
            return Gathers.BRIEFLY
        promise = self._link is not None and self._answers.promise and not self._lacks_features_of(self._link)
        return Gathers.ALWAYS if promise else Gathers.NOT

    @property
    def reads_states(self) -> bool:
        return self._reads_states

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
        there = self._link is not None or self._pool.has(
            self._avoided_drafters.addresses(), self._call.speculation.drafter
        )
        return Fallback.NOT_WORTH_IT if there else self._absence()

    def request(self, gamma: int, changed: Callable[[], object]) -> None:
        """Begin a wait that ends when γ drafts have arrived, when no more arrive, or when waiting no longer pays.

        If the pass does not wait for the round, the round uses the drafts that have arrived when the pass begins.
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

    def read(self, features: Features) -> None:
        """Keep features until the session's drafter wants them."""
        self._window = self._window or FeatureWindow()
        self._window.add(features)

    def commit(self, tokens: Sequence[int], judged: int, gamma: int) -> None:
        """Commit in the buffer and at the drafter. With γ = 0, or while features of earlier rounds are missing, the
        commit is sent when drafts are wanted again."""
        wanted = gamma > 0 and self._link is not None and not self._lacks_features_of(self._link, len(tokens))
        if self._link is None or not (wanted or judged or len(self._buffer)):
            self._unread += tokens
            return
        self._catch_up()
        if not self._buffer.advance(tokens, judged):
            self.close()
            return
        self._answers.committed(missed=len(self._unsent))
        self._unsent += tuple(tokens)
        if wanted:
            base_len = self._buffer.committed_len - len(self._unsent)
            features = self._window.unsent() if self._window and self._link.reads_features else None
            self._link.commit(Commit(self._call.session_id, self.epoch, base_len, self._unsent, gamma, features))
            self._unsent = ()

    def stop_waiting(self) -> None:
        """End the wait of a round if the next pass does not wait for it."""
        if self._awaited is not None:
            self._awaited.hurried = True

    def distrust(self) -> None:
        """Leave this drafter for the rest of the session."""
        if self._link is not None:
            self._link.malformed(self._call.session_id, self.epoch, "the draft could not be verified")

    def close(self) -> None:
        """Close the session at the drafter. The next round that wants drafts reopens it."""
        if self._link is not None:
            self._link.close(Close(self._call.session_id, self.epoch))
            self.lost()

    def drafted(self, message: DraftTokens) -> None:
        """Buffer drafted tokens if they continue the session's tokens; raise the errors of `checked`."""
        draft = checked(message.draft, self._call.speculation.mode, self._plan, self._vocab_size)
        message = replace(message, draft=draft)
        self._answers.drafted(message)
        if self._buffer.add(message):
            self._avoided_drafters.known()
            self._patience.succeeded()
            self._changed()

    def ended(self, end: DraftEnd) -> None:
        """Record that no drafts follow a prefix. A wait ends when the drafts up to its end are there."""
        self._answers.ended(end)
        self._changed()

    def refused(self, reason: NackReason) -> None:
        """Avoid this drafter for a period that depends on the reason."""
        if self._link is not None:
            self._avoided_drafters.add(self._link.address, reason)
        self.lost()

    def lost(self) -> None:
        """Drop this drafter and its drafts."""
        self._link = None
        self._buffer.clear()
        self._changed()

    def _open(self, gamma: int) -> None:
        """Open the session at a drafter, unless it is open or no drafter is available."""
        if self._link is not None:
            return
        link = self._choice()
        self._lacks_features = link is not None and self._lacks_features_of(link)
        if link is None or self._lacks_features:
            return
        self._link, call = link, self._call
        rounds = self._pool.rounds(link.source(call.sampling.temperature))
        outcomes = link.wanted_outcomes(self._settings.outcomes, rounds, gamma)
        self._catch_up()
        self._unsent, self._answers = (), DrafterAnswers()
        opening = Open(
            call.session_id, call.epoch, self._buffer.committed, call.prompt_len, call.sampling, call.speculation.mode,
            gamma, self._max_len, call.cache_salt, trace_headers().get(TRACEPARENT, ""), call.speculation.policy,
            self._plan, outcomes if self._plan is None else 0, uniform=True, request_id=current_request_id(),
            features=self._window.all() if self._window and link.reads_features else None,
        )  # fmt: skip
        link.open(opening, self)

    def _lacks_features_of(self, link: DrafterLink, more: int = 0) -> bool:
        """Whether a drafter reads features and lacks some of the tokens committed so far and `more` new ones.

        A round that runs ahead returns no features. Those of a token are known after the pass over the next one.
        """
        committed = self._buffer.committed_len + len(self._unread) + more
        return link.reads_features and (0 if self._window is None else self._window.end) < committed - 1

    def _catch_up(self) -> None:
        """Add the deferred commits to the buffer."""
        if self._unread:
            self._buffer.advance(self._unread, 0)
            self._unsent += tuple(self._unread)
            self._unread.clear()

    def _choice(self) -> DrafterLink | None:
        """Return the drafter that the session would use now."""
        return self._pool.choose(
            self._call.session_id, self._avoided_drafters.addresses(), self._call.speculation.drafter
        )

    def _complete(self, gamma: int) -> bool:
        """Whether γ drafts have arrived, or no more will arrive."""
        return self._buffer.holds(gamma) or self._answers.complete(self._buffer)

    def _is_over(self, awaited: "_AwaitedDraft", link: DrafterLink) -> bool:
        """Whether the wait for a draft has ended. Records the outcome in the circuit breakers."""
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
        """Return the reason that a session which was open has no draft."""
        if self._link is None:
            return self._absence()
        if self._complete(1) or not (patient or self._answers.matching):
            return Fallback.NO_MATCH
        return Fallback.LATE if patient else Fallback.FIRST_ROUND

    def _absence(self) -> Fallback:
        """Return the reason that no drafter can be used."""
        if self._lacks_features:
            return Fallback.FIRST_ROUND if self._reads_states else Fallback.NO_MATCH
        return Fallback.OVERLOADED if self._avoided_drafters.overloaded else self._pool.absence()


class DrafterAnswers:
    """State of one drafter's answers for one session since the session was opened there."""

    def __init__(self) -> None:
        """Create the state of a drafter that has not answered."""
        self.caught_up = False
        """Whether the drafter has read the committed tokens."""
        self.matching = True
        """Whether the drafter's last answer held a draft."""
        self._ended: DraftEnd | None = None
        """Last end of drafts. A verdict may have rejected its prefix since."""
        self._drafted_to = 0
        """Prefix length at the end of the draft received since the last commit; 0 if none was received."""

    @property
    def promise(self) -> bool:
        """Whether the next answer is expected to hold a draft."""
        return self.caught_up and self.matching

    def drafted(self, message: DraftTokens) -> None:
        """Record a received draft of any prefix."""
        self.caught_up = self.matching = True
        self._drafted_to = message.base_len + len(message.draft.tokens)

    def ended(self, end: DraftEnd) -> None:
        """Record that no drafts follow a prefix, drafts included."""
        self._ended, self.caught_up = end, True
        self.matching = self._drafted_to == end.base_len

    def committed(self, missed: int) -> None:
        """Record a commit: earlier answers apply to fewer committed tokens.

        Args:
            missed: number of tokens of earlier rounds not yet sent to the drafter. It reads them before it drafts.
        """
        self._drafted_to = 0
        self.caught_up = self.caught_up and missed <= _CATCH_UP

    def complete(self, buffer: DraftBuffer | TreeBuffer) -> bool:
        """Whether the buffer holds the drafts up to the last end, whose prefix no verdict has rejected."""
        end = self._ended
        if end is None or not buffer.committed_len <= end.base_len <= buffer.end:
            return False
        return end.prefix_hash in (0, buffer.hash_at(end.base_len))
