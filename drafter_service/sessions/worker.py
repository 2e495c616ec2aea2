"""The one thread that owns the drafter: take messages, step while any session wants tokens, hand out what was drawn."""

import contextvars
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import structlog

from drafter_service.drafters.base import Drafter, DrafterInfo, Failed, Nothing, Outcome, Work
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.batch import plan
from drafter_service.sessions.messages import End, Frame, Load, Message, Nack, Reason, Refused
from drafter_service.sessions.session import Session
from drafter_service.sessions.sessions import Sessions, Stream
from specdec.errors import RequestError
from specdec.wire.draft import DraftTokens

_SMOOTHING = 0.1
"""Weight of the newest step in the step time that is reported."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the worker takes on."""

    max_sessions: int
    chunk_tokens: int
    """Prefill tokens in one pass."""
    ahead: int
    """Tokens drafted past the draft that was asked for."""


@dataclass(slots=True, eq=False)
class _Outgoing:
    """What one stream gets with the next frame."""

    drafts: list[DraftTokens] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    nacks: list[Nack] = field(default_factory=list)


class Worker:
    """Runs from `start` to `stop`; every other method may be called from any thread and returns at once."""

    def __init__(self, load: Callable[[], Drafter], limits: Limits, metrics: DrafterMetrics) -> None:
        """Prepare.

        Args:
            load: makes the drafter; called on the worker's thread.
            limits: how much to take on.
            metrics: where to count.
        """
        self._load = load
        self._limits = limits
        self._metrics = metrics
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._outgoing: dict[Stream, _Outgoing] = defaultdict(_Outgoing)
        self._stopping = False
        # The thread's log lines carry what this process binds to all of them.
        run = partial(contextvars.copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="drafter", daemon=True)
        self._now = Load(0, 0.0)
        self.loaded: Future[DrafterInfo] = Future()
        """Done when the drafter is ready, or could not be loaded."""
        self.ended: Future[None] = Future()
        """Done when the thread has ended; holds the error if it was one."""

    @property
    def alive(self) -> bool:
        """Whether it is loaded and works."""
        return self.loaded.done() and not self.ended.done()

    def start(self) -> None:
        """Load the drafter and begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that runs."""
        self._inbox.put(self._stop)

    def post(self, stream: Stream, messages: Iterable[Message]) -> None:
        """Hand over a frame of a verifier."""
        self._inbox.put(partial(self._take, stream, tuple(messages)))

    def end_stream(self, stream: Stream) -> None:
        """Forget a stream and its sessions; a second time does nothing."""
        self._inbox.put(partial(self._end, stream))

    def wake(self) -> None:
        """Look again at what could be done: a stream has room."""
        self._inbox.put(_nothing)

    def settled(self) -> "Future[None]":
        """Done when everything handed over before has been taken."""
        done: Future[None] = Future()
        self._inbox.put(partial(done.set_result, None))
        return done

    def load(self) -> Load:
        """How busy it is."""
        return self._now

    def _run(self) -> None:
        try:
            self._drafter = self._load()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
            self.loaded.set_exception(error)
            self.ended.set_result(None)
            return
        self._sessions = Sessions(self._drafter, self._limits.max_sessions)
        self._now = Load(0, self._drafter.info.step_seconds)
        self.loaded.set_result(self._drafter.info)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the future is awaited
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _work(self) -> None:
        busy = False
        while not self._stopping:
            self._drain(wait=not busy)
            self._send()
            busy = self._step()
            self._send()

    def _drain(self, wait: bool) -> None:
        """Take everything that waits; with `wait`, at least one thing."""
        try:
            self._inbox.get(block=wait)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass
        self._report(self._now.step_seconds)

    def _stop(self) -> None:
        self._stopping = True

    def _end(self, stream: Stream) -> None:
        self._sessions.end(stream)
        self._outgoing.pop(stream, None)

    def _take(self, stream: Stream, messages: tuple[Message, ...]) -> None:
        for message in messages:
            try:
                session = self._sessions.take(stream, message)
            except Refused as refused:
                self._nack(stream, message.session_id, message.epoch, refused.reason, refused.detail)
            except Exception as error:  # noqa: BLE001 - one session's message must not end the others
                _log.error("draft_message_failed", session_id=message.session_id, exc_info=error)
                self._sessions.drop(stream, message.session_id)
                self._nack(stream, message.session_id, message.epoch, Reason.INTERNAL, str(error))
            else:
                if session is not None:
                    self._tell(stream, session)
        self._tell_dropped()

    def _step(self) -> bool:
        """One pass over the sessions that want tokens; False when there are none."""
        streams = {session: stream for stream, session in self._sessions if not stream.full}
        batch = plan(
            [
                (session, len(session) - self._drafter.length(session.key))
                for session in streams
                if session.wants(self._limits.ahead)
            ],
            self._limits.chunk_tokens,
        )
        batch = self._sessions.with_room(batch)
        self._tell_dropped()
        if not batch:
            return False
        started = time.perf_counter()
        for outcome in self._outcomes(batch):
            self._apply(streams[outcome.session], outcome)
        self._measure(batch, time.perf_counter() - started)
        return True

    def _outcomes(self, batch: list[Work]) -> Sequence[Outcome]:
        try:
            return self._drafter.step(batch)
        except Exception as error:  # noqa: BLE001 - the thread must go on, whatever the pass died of
            _log.error("draft_step_failed", sessions=len(batch), exc_info=error)
            return [Failed(work.session, error) for work in batch]

    def _apply(self, stream: Stream, outcome: Outcome) -> None:
        session = outcome.session
        if isinstance(outcome, Failed):
            reason = Reason.MALFORMED if isinstance(outcome.error, RequestError) else Reason.INTERNAL
            self._sessions.forget(stream, session)
            self._nack(stream, session.session_id, session.epoch, reason, str(outcome.error))
            return
        if isinstance(outcome, Nothing):
            session.stop_drafting()
        else:
            session.extend(outcome.token, outcome.probs)
            self._metrics.tokens.inc()
        # A verifier waits for a whole draft: its parts, one by one, would only keep both sides' event loops busy.
        if session.settled(self._limits.ahead):
            self._tell(stream, session)

    def _tell(self, stream: Stream, session: Session) -> None:
        chunk = session.take_unsent()
        if chunk is not None:
            self._outgoing[stream].drafts.append(chunk)
        if session.take_end():
            self._outgoing[stream].ends.append(End(session.session_id, session.epoch, len(session)))

    def _tell_dropped(self) -> None:
        for stream, session in self._sessions.take_dropped():
            self._metrics.dropped.inc()
            self._nack(stream, session.session_id, session.epoch, Reason.OVERLOADED, "another needs its memory")

    def _nack(self, stream: Stream, session_id: str, epoch: int, reason: Reason, detail: str) -> None:
        _log.info("session_refused", stream=stream.number, session_id=session_id, reason=reason, detail=detail)
        self._metrics.nacks.labels(reason).inc()
        self._outgoing[stream].nacks.append(Nack(session_id, epoch, reason, detail))

    def _send(self) -> None:
        """One frame for every stream that has something to hear."""
        outgoing, self._outgoing = self._outgoing, defaultdict(_Outgoing)
        for stream, out in outgoing.items():
            stream.deliver(Frame(tuple(out.drafts), tuple(out.ends), tuple(out.nacks)))

    def _measure(self, batch: list[Work], seconds: float) -> None:
        self._metrics.step_seconds.observe(seconds)
        self._metrics.batch_size.observe(len(batch))
        self._metrics.computed_tokens.inc(sum(work.count for work in batch))
        self._report((1 - _SMOOTHING) * self._now.step_seconds + _SMOOTHING * seconds)

    def _report(self, step_seconds: float) -> None:
        self._now = Load(len(self._sessions), step_seconds)
        self._metrics.sessions.set(self._now.sessions)
        memory = self._drafter.memory
        for state, size in (("live", memory.live), ("cached", memory.cached), ("budget", memory.budget)):
            self._metrics.kv_bytes.labels(state).set(size)


def _nothing() -> None:
    """Wakes the thread."""
