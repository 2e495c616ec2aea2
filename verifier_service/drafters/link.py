"""The link to one drafter without its wire: who is served over it, what waits to be sent, and whether it works."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

import structlog

from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, Commit, Open
from verifier_service.drafters.breaker import Breaker
from verifier_service.drafters.listener import Listener, Refusal
from verifier_service.drafters.outbox import Outbox
from verifier_service.metrics import Metrics

_TIMEOUTS_IN_A_ROW = 4
"""Waits in vain, over all sessions, after which the drafter is taken to hang."""
_PINGS = 16
"""How many round trips are remembered."""

_log = structlog.get_logger()


class LinkState(StrEnum):
    """What the link is good for."""

    CONNECTING = "connecting"
    READY = "ready"
    REFUSED = "refused"
    """The drafter answers but does not fit; tried again now and then."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """For people."""

    address: str
    state: str
    model: str


class DrafterLink:
    """Sessions talk to it from above, the stream's reader and writer from below; all on the event loop."""

    def __init__(self, address: str, probe: float, metrics: Metrics) -> None:
        """`probe` is how often, in seconds, a drafter that hangs is waited for again."""
        self.address = address
        self.state = LinkState.CONNECTING
        self.step_seconds = 0.0
        """What the drafter says one step takes; 0 before it said."""
        self.sessions = 0
        """What the drafter says it serves, other verifiers' sessions among them."""
        self._round_trips: deque[float] = deque(maxlen=_PINGS)
        self.breaker = Breaker(_TIMEOUTS_IN_A_ROW, probe)
        self.outbox = Outbox()
        self._model = ""
        self._detail = ""
        self._metrics = metrics
        self._listeners: dict[str, Listener] = {}
        self._enter(LinkState.CONNECTING)

    @property
    def status(self) -> LinkStatus:
        """State, with the reason of a refusal."""
        state = f"{self.state}: {self._detail}" if self._detail else self.state.value
        return LinkStatus(self.address, state, self._model)

    @property
    def distance(self) -> float:
        """Least round trip of late, in seconds: what it takes when nobody is busy; 0 before it was measured."""
        return min(self._round_trips, default=0.0)

    # From above.

    def open(self, message: Open, listener: Listener) -> None:
        """Begin a session, or begin it again."""
        self._listeners[message.session_id] = listener
        self.outbox.open(message)

    def commit(self, message: Commit) -> None:
        """Send a session's verdict."""
        self.outbox.commit(message)

    def close(self, message: Close) -> None:
        """End a session; its listener hears no more."""
        if self._listener(message.session_id, message.epoch) is not None:
            del self._listeners[message.session_id]
            self.outbox.close(message)

    # From below.

    def connected(self, model: str, step_seconds: float) -> None:
        """The drafter accepted the conversation."""
        self.outbox = Outbox()
        self._model, self.step_seconds, self._detail = model, step_seconds, ""
        self.breaker.succeeded()
        self._enter(LinkState.READY)
        _log.info("drafter_ready", address=self.address, model=model)

    def refused(self, detail: str) -> None:
        """The drafter does not fit."""
        if detail != self._detail:
            _log.error("drafter_refused", address=self.address, detail=detail)
        self._detail = detail
        self._drop_all(LinkState.REFUSED)

    def lost(self, detail: str) -> None:
        """The stream broke or could not be made."""
        if self.state is LinkState.READY:
            _log.warning("drafter_lost", address=self.address, detail=detail, sessions=len(self._listeners))
        self._detail = ""
        self._drop_all(LinkState.CONNECTING)

    def round_trip(self, seconds: float) -> None:
        """A ping was answered after so long."""
        self._round_trips.append(seconds)
        self._metrics.drafter_rtt.labels(self.address).set(seconds)

    def loaded(self, sessions: int, step_seconds: float) -> None:
        """The drafter says how busy it is."""
        self.sessions = sessions
        self.step_seconds = step_seconds or self.step_seconds

    def gone(self) -> None:
        """There is no such drafter any more; nothing of it is shown from now on."""
        self.lost("it is gone")
        self._metrics.drafter_rtt.remove(self.address)
        for each in LinkState:
            self._metrics.drafter_up.remove(self.address, each.value)

    def drafted(self, message: DraftTokens) -> None:
        """Drafts came for a session."""
        listener = self._listener(message.session_id, message.epoch)
        if listener is not None:
            listener.drafted(message)

    def ended(self, session_id: str, epoch: int, length: int) -> None:
        """No more drafts come for a session's prefix."""
        listener = self._listener(session_id, epoch)
        if listener is not None:
            listener.ended(length)

    def nacked(self, session_id: str, epoch: int, reason: Refusal, detail: str) -> None:
        """The drafter refuses a session."""
        listener = self._listener(session_id, epoch)
        if listener is not None:
            _log.info("draft_nacked", address=self.address, session=session_id, reason=reason.value, detail=detail)
            del self._listeners[session_id]
            listener.refused(reason)

    def malformed(self, session_id: str, epoch: int, detail: str) -> None:
        """The drafter sent nonsense for a session: that session leaves it, the others stay."""
        listener = self._listener(session_id, epoch)
        if listener is not None:
            _log.warning("draft_malformed", address=self.address, session=session_id, detail=detail)
            self._metrics.malformed.labels(self.address).inc()
            self.close(Close(session_id, epoch))
            listener.refused(Refusal.MALFORMED)

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
