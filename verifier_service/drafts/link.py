"""The link to one drafter, independent of its stream: state, sessions and messages to send."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Protocol

import structlog

from specdec.wire.beams import BeamAsk, ProposedBeam
from specdec.wire.draft import DraftTokens
from specdec.wire.generation import DrafterState
from specdec.wire.session import Close, Commit, DraftEnd, Load, Nack, NackReason, Open
from verifier_service.metrics import VerifierMetrics
from verifier_service.speculation.costs import DraftedRounds

OUTCOMES = 8
"""Number of verdict outcomes that the drafter pushes chains for when pushing pays."""
_HITS = 0.5
"""Assumed probability that one of the pushed outcomes is right when the draft ahead was wrong."""
_LEAST_GAIN = 0.1
"""Least share of a round that pushing must save. The estimate errs by about half of it."""
_LEAST_DISTANCE = 0.1
"""Least round trip, in plain rounds."""
_MOST_SESSIONS = 4
"""Most sessions of a drafter that pushes. Each outcome costs it as much work as one more session."""
_STAYING = 0.7
"""Factor that relaxes these limits while chains are pushed, so that noise does not toggle the choice."""
_TIMEOUTS_IN_A_ROW = 4
"""Consecutive waits without a draft, over all sessions, after which the drafter counts as hung."""
_PINGS = 16
"""Number of recent round trips to keep."""
_WARM = 0.85
"""Temperature at and above which acceptance is estimated separately. Drafts at lower temperatures are accepted more."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Frame:
    """Content of one message. The drafter processes opens, then commits, then closes."""

    opens: tuple[Open, ...] = ()
    commits: tuple[Commit, ...] = ()
    closes: tuple[Close, ...] = ()
    ping: int | None = None
    """Nonce of a ping."""


class Outbox:
    """Merges the messages of one event-loop iteration, or those queued while the writer was blocked, into one frame."""

    def __init__(self) -> None:
        self._opens: dict[str, Open] = {}
        self._commits: dict[str, Commit] = {}
        self._closes: dict[str, Close] = {}
        self._ping: int | None = None
        self._filled = asyncio.Event()

    def open(self, message: Open) -> None:
        """Queue an open, which replaces all queued messages of its session."""
        self._commits.pop(message.session_id, None)
        self._closes.pop(message.session_id, None)
        self._opens[message.session_id] = message
        self._filled.set()

    def commit(self, message: Commit) -> None:
        """Queue a commit, merged with the queued commit that it continues."""
        earlier = self._commits.get(message.session_id)
        if earlier is not None:
            tokens = earlier.tokens + message.tokens
            features = message.features if earlier.features is None else earlier.features.joined(message.features)
            message = replace(message, base_len=earlier.base_len, tokens=tokens, features=features)
        self._commits[message.session_id] = message
        self._filled.set()

    def close(self, message: Close) -> None:
        """Queue a close, which replaces all queued messages of its session."""
        self._opens.pop(message.session_id, None)
        self._commits.pop(message.session_id, None)
        self._closes[message.session_id] = message
        self._filled.set()

    def ping(self, nonce: int) -> None:
        """Queue a ping, which replaces a queued one."""
        self._ping = nonce
        self._filled.set()

    async def take(self) -> Frame:
        """Wait for a message, and return all queued messages as one frame."""
        await self._filled.wait()
        opens, commits, closes = self._opens.values(), self._commits.values(), self._closes.values()
        frame = Frame(tuple(opens), tuple(commits), tuple(closes), self._ping)
        self._opens, self._commits, self._closes, self._ping = {}, {}, {}, None
        self._filled.clear()
        return frame


class Breaker:
    """Circuit breaker that opens after `threshold` consecutive failures.

    While open, it allows one try every `probe` seconds. A success closes it. Times are in seconds of a monotonic clock
    that the caller reads.
    """

    def __init__(self, threshold: int, probe: float) -> None:
        self._threshold = threshold
        self._probe = probe
        self._failures = 0
        self._next_try = 0.0

    def allows(self, now: float) -> bool:
        """Whether a try is allowed at time `now`. A try allowed while open postpones the next one by `probe`."""
        if self._failures < self._threshold:
            return True
        if now < self._next_try:
            return False
        self._next_try = now + self._probe
        return True

    def failed(self, now: float) -> None:
        """Record a try that failed at time `now`."""
        self._failures += 1
        self._next_try = now + self._probe

    def succeeded(self) -> None:
        """Record a successful try, which closes the breaker."""
        self._failures = 0


class LinkState(StrEnum):
    """State of the link to a drafter."""

    CONNECTING = "connecting"
    READY = "ready"
    REFUSED = "refused"
    """The drafter answers but does not fit. The client retries at intervals."""
    UNAUTHENTICATED = "unauthenticated"
    """The drafter answers but rejects the access token. The client retries at intervals."""


class Listener(Protocol):
    """Receiver of a drafter's messages about one session. Runs on the event loop and must not block."""

    @property
    def epoch(self) -> int:
        """Epoch of the session. The link drops messages of other epochs."""

    def drafted(self, chunk: DraftTokens) -> None:
        """Receive drafted tokens; raise FieldInvalid or TokenOutOfRange if they are malformed."""

    def ended(self, end: DraftEnd) -> None:
        """Receive the notice that the drafter sends no more tokens for a prefix, drafts included."""

    def refused(self, reason: NackReason) -> None:
        """Receive the drafter's refusal of the session. The link has already dropped the session."""

    def lost(self) -> None:
        """Receive the notice that the link broke and dropped the session."""


class DrafterLink:
    """Connects the sessions to the stream of one drafter. All methods run on the event loop.

    Sessions call `open`, `commit` and `close`. The stream's client calls the other methods.
    """

    def __init__(self, address: str, probe: float, metrics: VerifierMetrics) -> None:
        """Create a link; `probe` is the interval between two waits for a hung drafter, in seconds."""
        self.address = address
        self.state = LinkState.CONNECTING
        self.step_seconds = 0.0
        """Duration of one draft step as reported by the drafter, in seconds. 0 before the first report."""
        self.sessions = 0
        """Number of sessions that the drafter reports, including those of other verifiers."""
        self._round_trips: deque[float] = deque(maxlen=_PINGS)
        self.breaker = Breaker(_TIMEOUTS_IN_A_ROW, probe)
        self.outbox = Outbox()
        self.model = ""
        """Model name that the drafter reports; empty until known."""
        self.kind = ""
        """Kind of the drafter; empty until known."""
        self.outcomes = 0
        """Most verdict outcomes that the drafter can push chains for; 0 if it cannot push."""
        self.pushing = PushChoice()
        """Decides whether pushing pays when the setting is `auto`."""
        self.reads_features = False
        """Whether the drafter reads the target's features."""
        self.overlap = 0.0
        """Vocabulary overlap of target and drafter, as a share of the smaller vocabulary; 0 until known."""
        self.propose_beams: Callable[[BeamAsk, int], Awaitable[tuple[ProposedBeam, ...]]] | None = None
        """Asks the drafter for beams over the connection of the stream; None without one. Takes the
        vocabulary's size; raises as `client.proposed_beams`."""
        self._detail = ""
        self._metrics = metrics
        self._listeners: dict[str, Listener] = {}
        self._enter(LinkState.CONNECTING)

    @property
    def drafter_state(self) -> DrafterState:
        """Address, state and model of the drafter, and the reason if it refused."""
        state = f"{self.state}: {self._detail}" if self._detail else self.state.value
        return DrafterState(self.address, state, self.model, self.kind, self.overlap)

    @property
    def names(self) -> frozenset[str]:
        """Names by which a request can select this drafter."""
        return frozenset({self.address, self.model, self.kind} - {""})

    def source(self, temperature: float) -> str:
        """Return the key under which acceptance is estimated: model, kind and approximate temperature."""
        name = self.model if self.kind == "model" else f"{self.model}, {self.kind}"
        return temperature_key(name, temperature)

    @property
    def distance(self) -> float:
        """Least of the recent round trips in seconds, which is the time without queueing; 0 before the first."""
        return min(self._round_trips, default=0.0)

    def wanted_outcomes(self, setting: int | Literal["auto"], rounds: DraftedRounds, gamma: int) -> int:
        """Return the number of verdict outcomes to request chains for in a session that opens now.

        Args:
            setting: most outcomes; `auto` requests them only if pushing pays.
            rounds: acceptance and plain round time for this link's drafts.
            gamma: next draft length of the session.
        """
        most = setting
        if most == "auto":
            most = self.pushing.outcomes(MeasuredLink(self.distance, self.step_seconds, self.sessions), rounds, gamma)
        wanted = min(most, self.outcomes)
        self._metrics.drafter_outcomes.labels(self.address).set(wanted)
        self._metrics.push_gain.labels(self.address).set(self.pushing.gain)
        return wanted

    def open(self, message: Open, listener: Listener) -> None:
        """Open or reopen a session; `listener` receives its messages from now on."""
        self._listeners[message.session_id] = listener
        self.outbox.open(message)

    def commit(self, message: Commit) -> None:
        """Send the tokens committed by a session's verdict."""
        self.outbox.commit(message)

    def close(self, message: Close) -> None:
        """Close a session. Its listener receives no more messages."""
        if self._listener(message.session_id, message.epoch) is not None:
            del self._listeners[message.session_id]
            self.outbox.close(message)

    def connected(
        self, model: str, step_seconds: float, kind: str = "", overlap: float = 1.0, outcomes: int = 0
    ) -> None:
        """Mark the link as ready after a successful handshake, and store what the drafter reports.

        `overlap` is the share of the smaller vocabulary that target and drafter have in common.
        An empty `kind`, as older drafters send it, means a language model.
        """
        self.outbox = Outbox()
        self.model, self.step_seconds, self._detail, self.kind = model, step_seconds, "", kind or "model"
        self.overlap, self.outcomes = overlap, outcomes
        self._metrics.drafter_overlap.labels(self.address).set(overlap)
        self.breaker.succeeded()
        self._enter(LinkState.READY)
        _log.info("drafter_ready", address=self.address, model=model)

    def refused(self, detail: str, state: LinkState = LinkState.REFUSED) -> None:
        """Mark the link as refused. `state` tells a drafter that does not fit from one that rejects the token."""
        if detail != self._detail:
            _log.error("drafter_refused", address=self.address, detail=detail)
        self._detail = detail
        self._drop_all(state)

    def lost(self, detail: str) -> None:
        """Mark the link as connecting after the stream broke or could not be opened."""
        if self.state is LinkState.READY:
            _log.warning("drafter_lost", address=self.address, detail=detail, sessions=len(self._listeners))
        self._detail = ""
        self._drop_all(LinkState.CONNECTING)

    def round_trip(self, seconds: float) -> None:
        """Record the time from a ping to its answer."""
        self._round_trips.append(seconds)
        self._metrics.drafter_rtt.labels(self.address).set(seconds)

    def loaded(self, load: Load) -> None:
        """Record the drafter's load report. A step time of 0 means unknown."""
        self.sessions = load.sessions
        self.step_seconds = load.step_seconds or self.step_seconds

    def gone(self) -> None:
        """Drop all sessions and metrics of a drafter that no longer exists."""
        self.lost("it is gone")
        self._metrics.drafter_rtt.remove(self.address)
        self._metrics.drafter_overlap.remove(self.address)
        self._metrics.drafter_outcomes.remove(self.address)
        self._metrics.push_gain.remove(self.address)
        for each in LinkState:
            self._metrics.drafter_up.remove(self.address, each.value)

    def drafted(self, message: DraftTokens) -> None:
        """Pass drafted tokens on to their session."""
        listener = self._listener(message.session_id, message.epoch)
        if listener is not None:
            listener.drafted(message)

    def ended(self, end: DraftEnd) -> None:
        """Notify a session that no more drafts arrive for its prefix."""
        listener = self._listener(end.session_id, end.epoch)
        if listener is not None:
            listener.ended(end)

    def nacked(self, nack: Nack) -> None:
        """Notify a session that the drafter refused it, and drop the session."""
        session, reason = nack.session_id, nack.reason
        listener = self._listener(session, nack.epoch)
        if listener is not None:
            _log.info("draft_nacked", address=self.address, session=session, reason=reason.value, detail=nack.detail)
            del self._listeners[session]
            listener.refused(reason)

    def malformed(self, session_id: str, epoch: int, detail: str) -> None:
        """Close a session for which the drafter sent a malformed message. Other sessions stay open."""
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


def temperature_key(name: str, temperature: float) -> str:
    """Return the key under which acceptance of drafts of `name` is estimated at `temperature`."""
    if temperature == 0.0:
        return f"{name}, greedy"
    return f"{name}, cool" if temperature < _WARM else name


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Measurements of one link."""

    round_trip: float
    """Round trip in seconds, without queueing; 0 before the first measurement."""
    step: float
    """Duration of one draft step in seconds; 0 before the drafter's first report."""
    sessions: int
    """Sessions of the drafter, including those of other verifiers."""


class PushChoice:
    """Decides whether one drafter pushes chains for new sessions."""

    def __init__(self) -> None:
        self.gain = 0.0
        """Share of a round that pushing is expected to save, from the last decision."""
        self._pushes = False

    def outcomes(self, link: MeasuredLink, rounds: DraftedRounds, gamma: int) -> int:
        """Return the number of outcomes to push for in a session that opens with a draft of γ tokens."""
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
    """Return the share of a round with drafting ahead that pushed chains save."""
    plain, missed = rounds.plain_seconds, 1.0 - rounds.alpha ** (gamma + 1)
    wait = link.round_trip + gamma * link.step
    saved = max(min(wait, plain - link.step), 0.0)
    return missed * _HITS * saved / (plain + missed * wait)
