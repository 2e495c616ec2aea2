"""The link to one drafter, apart from its stream: its sessions, what waits to be sent, and whether it works."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import structlog

from specdec.wire.draft import DraftTokens
from specdec.wire.generation import DrafterState
from specdec.wire.session import Close, Commit, DraftEnd, Load, Nack, NackReason, Open
from verifier_service.drafts.breaker import Breaker
from verifier_service.drafts.outbox import Outbox
from verifier_service.metrics import VerifierMetrics
from verifier_service.speculation.costs import DraftedRounds

OUTCOMES = 8
"""Outcomes that are pushed for where it is worth it."""
_HITS = 0.5
"""Share of the verdicts for which drafting ahead was wrong, and one of the outcomes is right."""
_LEAST_GAIN = 0.1
"""Share of a round that must be saved; the estimate errs by about half as much."""
_LEAST_DISTANCE = 0.1
"""Least round trip, in plain rounds."""
_MOST_SESSIONS = 4
"""Most sessions of the drafter: each outcome takes it the work of another one."""
_STAYING = 0.7
"""Factor that makes these limits easier while chains are pushed, so that noise does not change the way."""
_TIMEOUTS_IN_A_ROW = 4
"""Waits that ended without a draft, over all sessions, after which the drafter is taken to hang."""
_PINGS = 16
"""Number of round trips that are remembered."""

_WARM = 0.85
"""Temperature from which sampled drafts are judged apart from those of cooler sampling, which are accepted more."""

_log = structlog.get_logger()


class LinkState(StrEnum):
    """Whether the drafter can be used."""

    CONNECTING = "connecting"
    READY = "ready"
    REFUSED = "refused"
    """The drafter answers but does not fit; it is tried again now and then."""
    UNAUTHENTICATED = "unauthenticated"
    """The drafter answers but asks for another token; it is tried again now and then."""


class Listener(Protocol):
    """Takes a drafter's messages about one session; called on the event loop, must not block."""

    @property
    def epoch(self) -> int:
        """The session's epoch; messages of another one are not for this listener."""

    def drafted(self, chunk: DraftTokens) -> None:
        """Take drafted tokens; raises FieldInvalid or TokenOutOfRange when they are malformed."""

    def ended(self, length: int) -> None:
        """Note that no more tokens come for the prefix of that length, committed and drafted."""

    def refused(self, reason: NackReason) -> None:
        """Note that the drafter does not serve the session; the link has forgotten it."""

    def lost(self) -> None:
        """Note that the link broke and has forgotten the session."""


class DrafterLink:
    """Stands between the sessions and the stream to one drafter; all on the event loop.

    Sessions call `open`, `commit` and `close`; the stream's client calls the other methods.
    """

    def __init__(self, address: str, probe: float, metrics: VerifierMetrics) -> None:
        """`probe` is the time in seconds between two waits for a drafter that hangs."""
        self.address = address
        self.state = LinkState.CONNECTING
        self.step_seconds = 0.0
        """Seconds of one draft step, as the drafter reports it; 0 before the first report."""
        self.sessions = 0
        """Sessions that the drafter reports, those of other verifiers among them."""
        self._round_trips: deque[float] = deque(maxlen=_PINGS)
        self.breaker = Breaker(_TIMEOUTS_IN_A_ROW, probe)
        self.outbox = Outbox()
        self.model = ""
        """What it drafts with, as it says; empty until known."""
        self.kind = ""
        """What drafts there; empty until known."""
        self.outcomes = 0
        """Most outcomes of a verdict that it pushes chains for; 0 where it cannot."""
        self.pushing = PushChoice()
        """Whether it is worth that, where the settings leave it to measurements."""
        self.overlap = 0.0
        """Share of the smaller vocabulary that target and drafter have in common; 0 until known."""
        self._detail = ""
        self._metrics = metrics
        self._listeners: dict[str, Listener] = {}
        self._enter(LinkState.CONNECTING)

    @property
    def drafter_state(self) -> DrafterState:
        """The drafter's address, state and model, with the reason of a refusal."""
        state = f"{self.state}: {self._detail}" if self._detail else self.state.value
        return DrafterState(self.address, state, self.model, self.kind, self.overlap)

    @property
    def names(self) -> frozenset[str]:
        """The names by which a request can ask for this drafter."""
        return frozenset({self.address, self.model, self.kind} - {""})

    def source(self, temperature: float) -> str:
        """Names what is judged together: drafts of one model and kind, for about the same temperature."""
        name = self.model if self.kind == "model" else f"{self.model}, {self.kind}"
        return at_about(name, temperature)

    @property
    def distance(self) -> float:
        """Least of the last round trips, in seconds: the time without queueing; 0 before the first."""
        return min(self._round_trips, default=0.0)

    def wanted_outcomes(self, setting: int | Literal["auto"], rounds: DraftedRounds, gamma: int) -> int:
        """Outcomes of its verdicts that a session which opens now asks chains for.

        Args:
            setting: how many at most; `auto` asks for some where they are worth it.
            rounds: what rounds with drafts of this link are like.
            gamma: the session's next draft length.
        """
        most = setting
        if most == "auto":
            most = self.pushing.outcomes(MeasuredLink(self.distance, self.step_seconds, self.sessions), rounds, gamma)
        wanted = min(most, self.outcomes)
        self._metrics.drafter_outcomes.labels(self.address).set(wanted)
        self._metrics.push_gain.labels(self.address).set(self.pushing.gain)
        return wanted

    def open(self, message: Open, listener: Listener) -> None:
        """Begin a session, or begin it again; `listener` gets its messages from now on."""
        self._listeners[message.session_id] = listener
        self.outbox.open(message)

    def commit(self, message: Commit) -> None:
        """Send a session's verdict."""
        self.outbox.commit(message)

    def close(self, message: Close) -> None:
        """End a session; its listener gets no more messages."""
        if self._listener(message.session_id, message.epoch) is not None:
            del self._listeners[message.session_id]
            self.outbox.close(message)

    def connected(
        self, model: str, step_seconds: float, kind: str = "", overlap: float = 1.0, outcomes: int = 0
    ) -> None:
        """Note that the drafter has accepted the stream: it drafts with `model`, in steps of so many seconds.

        `overlap` is the share of the smaller vocabulary that target and drafter have in common.
        A drafter that names no kind is of a version that had language models first of all.
        """
        self.outbox = Outbox()
        self.model, self.step_seconds, self._detail, self.kind = model, step_seconds, "", kind or "model"
        self.overlap, self.outcomes = overlap, outcomes
        self._metrics.drafter_overlap.labels(self.address).set(overlap)
        self.breaker.succeeded()
        self._enter(LinkState.READY)
        _log.info("drafter_ready", address=self.address, model=model)

    def refused(self, detail: str, state: LinkState = LinkState.REFUSED) -> None:
        """Note that the drafter does not fit, or asks for another token: `state` says which."""
        if detail != self._detail:
            _log.error("drafter_refused", address=self.address, detail=detail)
        self._detail = detail
        self._drop_all(state)

    def lost(self, detail: str) -> None:
        """Note that the stream broke or could not be made."""
        if self.state is LinkState.READY:
            _log.warning("drafter_lost", address=self.address, detail=detail, sessions=len(self._listeners))
        self._detail = ""
        self._drop_all(LinkState.CONNECTING)

    def round_trip(self, seconds: float) -> None:
        """Note the time from a ping to its answer."""
        self._round_trips.append(seconds)
        self._metrics.drafter_rtt.labels(self.address).set(seconds)

    def loaded(self, load: Load) -> None:
        """Note what the drafter reports of its load; a step time of 0 is unknown."""
        self.sessions = load.sessions
        self.step_seconds = load.step_seconds or self.step_seconds

    def gone(self) -> None:
        """Note that the drafter does not exist any more, and remove its metrics."""
        self.lost("it is gone")
        self._metrics.drafter_rtt.remove(self.address)
        self._metrics.drafter_overlap.remove(self.address)
        self._metrics.drafter_outcomes.remove(self.address)
        self._metrics.push_gain.remove(self.address)
        for each in LinkState:
            self._metrics.drafter_up.remove(self.address, each.value)

    def drafted(self, message: DraftTokens) -> None:
        """Pass drafted tokens to their session."""
        listener = self._listener(message.session_id, message.epoch)
        if listener is not None:
            listener.drafted(message)

    def ended(self, end: DraftEnd) -> None:
        """Pass on that no more drafts come for a session's prefix."""
        listener = self._listener(end.session_id, end.epoch)
        if listener is not None:
            listener.ended(end.base_len)

    def nacked(self, nack: Nack) -> None:
        """Pass on that the drafter refuses a session, and forget the session."""
        session, reason = nack.session_id, nack.reason
        listener = self._listener(session, nack.epoch)
        if listener is not None:
            _log.info("draft_nacked", address=self.address, session=session, reason=reason.value, detail=nack.detail)
            del self._listeners[session]
            listener.refused(reason)

    def malformed(self, session_id: str, epoch: int, detail: str) -> None:
        """Close a session for which the drafter sent nonsense; the others stay."""
        listener = self._listener(session_id, epoch)
        if listener is not None:
            _log.warning("draft_malformed", address=self.address, session=session_id, detail=detail)
            self._metrics.malformed.labels(self.address).inc()
            self.close(Close(session_id, epoch))
            listener.refused(NackReason.MALFORMED)

    def _listener(self, session_id: str, epoch: int) -> Listener | None:
        listener = self._listeners.get(session_id)
        return listener if listener is not None and listener.epoch == epoch else None

    def _drop_all(self, state: LinkState) -> None:
        listeners, self._listeners = self._listeners, {}
        self._enter(state)
        for listener in listeners.values():
            listener.lost()

    def _enter(self, state: LinkState) -> None:
        self.state = state
        for each in LinkState:
            self._metrics.drafter_up.labels(self.address, each.value).set(each is state)


def at_about(name: str, temperature: float) -> str:
    """Names drafts of `name` for about a temperature: colder drafts are accepted more often."""
    if temperature == 0.0:
        return f"{name}, greedy"
    return f"{name}, cool" if temperature < _WARM else name


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured of a link."""

    round_trip: float
    """Seconds, without queueing; 0 before it was measured."""
    step: float
    """Seconds of one draft step; 0 before the drafter has said it."""
    sessions: int
    """Sessions of the drafter, those of other verifiers among them."""


class PushChoice:
    """Whether one drafter is to push; for sessions that open from now on."""

    def __init__(self) -> None:
        self.gain = 0.0
        """Share of a round that pushing is expected to save, as last judged."""
        self._pushes = False

    def outcomes(self, link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> int:
        """How many outcomes to push for in a session that opens with a draft of γ tokens."""
        self._pushes = self._worth(link, rounds, gamma)
        return OUTCOMES if self._pushes else 0

    def _worth(self, link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> bool:
        plain, ease = rounds.plain_seconds, _STAYING if self._pushes else 1.0
        self.gain = 0.0
        if not (plain and link.step and link.round_trip):
            return False
        self.gain = saved_share(link, rounds, gamma)
        far = link.round_trip >= ease * _LEAST_DISTANCE * plain
        has_time = ease * (gamma + 1) * link.step <= plain and ease * link.sessions <= _MOST_SESSIONS
        return far and has_time and self.gain >= ease * _LEAST_GAIN


def saved_share(link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> float:
    """The share of a round that drafts ahead which pushed chains save."""
    plain, missed = rounds.plain_seconds, 1.0 - rounds.alpha ** (gamma + 1)
    wait = link.round_trip + gamma * link.step
    saved = max(min(wait, plain - link.step), 0.0)
    return missed * _HITS * saved / (plain + missed * wait)
