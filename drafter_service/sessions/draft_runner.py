"""Drafts for all sessions, one step at a time, on the worker's thread."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import structlog

from drafter_service.config import DrafterSettings
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import (
    DraftedLevel,
    DraftedRun,
    DraftedToken,
    Drafter,
    DraftFailure,
    NoGuess,
    ScheduledSession,
    StepResult,
)
from drafter_service.sessions.outcomes import OutcomeSession
from drafter_service.sessions.refusal import SessionRefused
from drafter_service.sessions.session_table import SessionTable
from drafter_service.sessions.step_plan import StepPlanner, Wanting
from drafter_service.sessions.stream import Message, Reply, Stream
from specdec.errors import RequestError
from specdec.planning.line import Line
from specdec.serving.telemetry.tracing import record_span
from specdec.wire.session import Load, Nack, NackReason, Open

_SMOOTHING = 0.1
"""Weight of the latest step in the moving average of sessions per step."""
_SPREAD = 0.25
"""Minimum spread of step sizes, relative to their mean, to estimate the cost of a token. Below it the cost is 0."""

_log = structlog.get_logger()


class DraftRunner:
    """Takes messages, runs steps, and collects the replies until they are sent."""

    def __init__(self, drafter: Drafter, settings: DrafterSettings, metrics: DrafterMetrics) -> None:
        self._drafter = drafter
        self._settings = settings
        self._ahead = 0 if drafter.info.features else settings.ahead
        self._metrics = metrics
        self._table = SessionTable(drafter, settings)
        self._planner = StepPlanner(settings.step_sessions, settings.chunk_tokens)
        self._replies: dict[Stream, list[Reply]] = defaultdict(list)
        self._steps, self._sessions = Line(), 1.0
        """Fit of step duration, in seconds, over tokens computed; average sessions per step."""
        self._run_length = 1.0
        """Average number of tokens that a step drafts for a session."""
        self._steps.observe(1, drafter.info.step_seconds)

    @property
    def load(self) -> Load:
        """Current load of the drafter."""
        return Load(len(self._table), self._step_seconds)

    @property
    def _step_seconds(self) -> float:
        """Cost of one more draft token, in seconds: the duration of a step without prefill, divided by its drafted
        tokens."""
        tokens, _ = self._steps.mean
        base, token = self._steps.fit(0.0, _SPREAD * tokens)
        return (base + token * self._sessions) / self._run_length

    def take(self, stream: Stream, messages: Iterable[Message]) -> None:
        """Apply the messages of one frame. A message that cannot be applied is answered with a Nack."""
        for message in messages:
            try:
                session = self._table.take(stream, message)
            except SessionRefused as refused:
                self._nack(stream, message, refused.reason, refused.detail)
            except Exception as error:  # noqa: BLE001 - one session's message must not end the others
                _log.error("draft_message_failed", **_log_ids(message), exc_info=error)
                self._nack(stream, message, NackReason.INTERNAL, str(error))
            else:
                if isinstance(message, Open):
                    log = _log.info if message.request_id else _log.debug
                    log("session_opened", **_log_ids(message))
                if session is not None:
                    session.asked_at = time.time_ns()
                    self._reply(stream, session)
        self._nack_evicted()

    def end_stream(self, stream: Stream) -> None:
        """Remove a stream's sessions and its pending replies."""
        self._table.remove_stream(stream)
        self._replies.pop(stream, None)

    def step(self) -> bool:
        """Run one pass for the sessions that want drafts. Return False if there are none."""
        streams = {session: stream for stream, session in self._table if not stream.full}
        streams |= {
            each: streams[session] for session in list(streams) for each in self._table.outcomes.prepare(session)
        }
        wanting = [
            Wanting(stream.verifier_id, session, len(session) - self._drafter.sequences.length(session.key))
            for session, stream in streams.items()
            if session.wants_draft(self._ahead)
        ]
        planned = self._planner.plan(wanting)
        batch = self._table.reserve(planned)
        self._nack_evicted()
        if not batch:
            return False
        started = time.perf_counter()
        for result in self._draft(batch):
            self._apply(streams[result.session], result)
        self._measure(batch, time.perf_counter() - started)
        return True

    def send(self) -> None:
        """Send each stream its replies in one frame, and update the memory gauges."""
        memory = self._drafter.sequences.memory
        for state, size in (("live", memory.live), ("cached", memory.cached), ("budget", memory.budget)):
            self._metrics.kv_bytes.labels(state).set(size)
        replies, self._replies = self._replies, defaultdict(list)
        for stream, each in replies.items():
            stream.deliver(each)

    def _draft(self, batch: list[ScheduledSession]) -> Sequence[StepResult]:
        try:
            return self._drafter.step(batch)
        except Exception as error:  # noqa: BLE001 - the thread must survive any failure of a pass
            _log.error("draft_step_failed", sessions=len(batch), exc_info=error)
            return [DraftFailure(scheduled.session, error) for scheduled in batch]

    def _apply(self, stream: Stream, result: StepResult) -> None:
        session = result.session
        if isinstance(result, DraftFailure) and not session.drafted and not isinstance(session, OutcomeSession):
            self._refuse(stream, result)
            return
        due = bool(self._settings.local) and session.is_drawn
        if isinstance(result, DraftedToken):
            self._extend(result)
            self._run_length += _SMOOTHING * (1 - self._run_length)
        elif isinstance(result, DraftedRun):
            due = self._extend_by_run(result) or due
        elif isinstance(result, DraftedLevel):
            before = len(result.session.growth)
            result.session.growth.add(result.families)
            self._metrics.tokens.inc(len(result.session.growth) - before)
        else:
            if isinstance(result, NoGuess) and result.lacks_features:
                self._metrics.missing_features.inc()
            # The last draft may have caused the failure. The chain is still sent: a Nack would drop drafts depending on
            # the tokens drawn, which would bias the output.
            session.stop_drafting()
        # A verifier waits for a whole draft. Sending it in parts would only load both event loops. With guesses the
        # time of a whole draft depends on its tokens, so a late one must not be dropped as a whole: what has arrived
        # of it then depends on earlier tokens alone.
        if due or session.is_due(self._ahead):
            self._reply(stream, session)

    def _extend(self, drafted: DraftedToken) -> None:
        drafted.session.extend(drafted.token, drafted.probs, drafted.certainty, drafted.alternatives)
        self._metrics.tokens.inc()

    def _extend_by_run(self, run: DraftedRun) -> bool:
        """Add the tokens of a run that are still wanted, and return whether one of them made the draft due.

        The policy of a session may end the chain within the run. The computed state after the end is dropped.
        """
        session, before, due = run.session, len(run.session), False
        for each in run.tokens:
            if session.wants_draft(self._ahead):
                self._extend(each)
                due = due or session.is_due(self._ahead)
        sequences, drafted = self._drafter.sequences, len(session) - before
        sequences.truncate(session.key, min(sequences.length(session.key), len(session) - 1))
        self._run_length += _SMOOTHING * (drafted - self._run_length)
        self._metrics.guesses.inc(run.guessed)
        self._metrics.computed_tokens.inc(run.guessed)
        self._metrics.saved_steps.inc(drafted - 1)
        return due

    def _refuse(self, stream: Stream, failure: DraftFailure) -> None:
        """Remove a session that cannot be drafted for, and send a Nack."""
        reason = NackReason.MALFORMED if isinstance(failure.error, RequestError) else NackReason.INTERNAL
        self._table.remove(stream, failure.session)
        self._nack(stream, failure.session, reason, str(failure.error))

    def _reply(self, stream: Stream, session: DraftSession) -> None:
        drafts = session.take_unsent()
        if drafts is not None:
            self._replies[stream].append(drafts)
            drafted = {"specdec.drafted": len(drafts.draft.tokens), "specdec.base_len": drafts.base_len}
            record_span("draft", session.traceparent, session.asked_at, drafted)
            session.asked_at = time.time_ns()
        if (end := session.take_end()) is not None:
            self._replies[stream].append(end)

    def _nack_evicted(self) -> None:
        for stream, session in self._table.take_evicted():
            self._metrics.dropped.inc()
            self._nack(stream, session, NackReason.OVERLOADED, "another needs its room")

    def _nack(self, stream: Stream, refused: Message | DraftSession, reason: NackReason, detail: str) -> None:
        _log.info("session_refused", stream=stream.number, **_log_ids(refused), reason=reason, detail=detail)
        self._metrics.nacks.labels(reason).inc()
        self._replies[stream].append(Nack(refused.session_id, refused.epoch, reason, detail))

    def _measure(self, batch: list[ScheduledSession], seconds: float) -> None:
        self._metrics.step_seconds.observe(seconds)
        self._metrics.batch_size.observe(len(batch))
        computed = sum(scheduled.count for scheduled in batch)
        self._metrics.computed_tokens.inc(computed)
        self._steps.observe(computed, seconds)
        self._sessions += _SMOOTHING * (len(batch) - self._sessions)


def _log_ids(about: Message | DraftSession) -> dict[str, str]:
    """Return the ids of a session for log events, with its request id if it is known."""
    opened = about.opened if isinstance(about, DraftSession) else about
    request_id = opened.request_id if isinstance(opened, Open) else ""
    return {"session_id": about.session_id} | ({"request_id": request_id} if request_id else {})
