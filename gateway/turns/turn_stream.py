"""Event stream of one turn, whether its rounds are generated here, committed by another gateway, or read back."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum

import structlog

from gateway.admission import RequestPlaces
from gateway.store.values import TurnView
from gateway.tasks import retry
from gateway.turns.events import Event, OutputRound, Started
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import Header, Turn, header_from_bytes, round_from
from gateway.turns.turn_runner import TurnRunner
from specdec.errors import (
    CursorAhead,
    DeadlineExceeded,
    Fenced,
    InternalError,
    SessionDiverged,
    SessionHeld,
    SpecdecError,
    TurnOver,
)
from specdec.serving.telemetry.spans import Attributes, TraceSpan
from specdec.serving.telemetry.tracing import part_span

MOST = 8
"""Most consecutive losses without a new token; the next one fails the turn."""
_FIRST = 0.05
"""Base of the back-off, in seconds; the longest pause doubles with each loss."""
_LONGEST = 1.0
"""Upper bound of the back-off, in seconds."""
_IN_A_ROW = 16
"""Most rounds that are read back before the event loop runs others."""
_PAUSE = 0.05
"""Seconds between two polls of another owner's unchanged turn, and between two attempts to acquire it."""
_log = structlog.get_logger()


class TurnState(StrEnum):
    """State of a turn in this gateway."""

    OPENED = "opened"
    """The turn is known, its rounds are not."""
    READING = "reading"
    """The gateway reads the committed rounds from the session store."""
    GENERATING = "generating"
    """The gateway acquires the turn and generates it, at one verifier after another."""
    FOLLOWING = "following"
    """The gateway publishes the rounds that the owner, another gateway, commits."""
    FINISHED = "finished"
    """All events were published."""
    STOPPED = "stopped"
    """The gateway stopped before the turn's end: no reader, a drain, or a shutdown."""
    FAILED = "failed"
    """Readers received an error. Committed rounds stay, and the turn can be resumed."""


_RUNNING = frozenset({TurnState.STOPPED, TurnState.FAILED})
"""States that may follow every non-final state."""
TRANSITIONS: Mapping[TurnState, Set[TurnState]] = {
    TurnState.OPENED: _RUNNING | {TurnState.READING, TurnState.GENERATING},
    TurnState.READING: _RUNNING | {TurnState.GENERATING, TurnState.FINISHED},
    TurnState.GENERATING: _RUNNING | {TurnState.FOLLOWING, TurnState.READING, TurnState.FINISHED},
    TurnState.FOLLOWING: _RUNNING | {TurnState.GENERATING, TurnState.FINISHED},
    TurnState.FINISHED: frozenset(),
    TurnState.STOPPED: frozenset(),
    TurnState.FAILED: frozenset(),
}


def following(now: TurnState, then: TurnState) -> TurnState:
    """Return `then`; raises InternalError if it may not follow `now`."""
    if then not in TRANSITIONS[now]:
        raise InternalError(f"a turn that is {now} cannot be {then}")
    return then


class TurnStream:
    """Publishes all events of a turn once, in order; implements `gateway.turns.broadcast.Generated`."""

    def __init__(
        self,
        services: Services,
        turn: Turn,
        deadline: float,
        header: Header | None = None,
        places: RequestPlaces | None = None,
    ) -> None:
        """Stream a turn.

        Args:
            turn: a turn that exists in the session store.
            deadline: time limit, by `time.monotonic()`.
            header: header of a turn just opened, without rounds; None reads header and rounds from the store.
            places: places of the request; None for a turn alone.
        """
        self._services = services
        self._turn = turn
        self._deadline = deadline
        self._places = places or RequestPlaces(services.generations, turn.tenant)
        self._transcript_or_none = self._transcript_of(header) if header else None
        self.state = TurnState.OPENED
        self._sent = 0
        """Number of published rounds."""
        self._read_tokens: int | None = None
        self._runner: TurnRunner | None = None
        """Runner that generates the turn; None while this gateway does not own it."""
        self._began = time.monotonic()

    def reader_is_at(self, read: int | None, *, at_end: bool = False) -> None:
        """Set the number of output tokens sent to the fastest reader; see `gateway.turns.broadcast.Generated`."""
        self._read_tokens = read
        if self._runner is not None:
            self._runner.reader_is_at(read, at_end=at_end)

    async def run(self, publish: Callable[[Event], None]) -> None:
        """Publish Started, then OutputRounds, then Finished. Cancellation releases the unfinished turn.

        Raises:
            CursorAhead: the session store lost rounds that were published.
            SpecdecError: a failure could not be recovered.
        """
        outcome = "error"
        with part_span("generate") as span:
            try:
                with self._services.drain.generation():
                    missed = [] if self._transcript_or_none else await self._reload()
                    publish(Started(self._turn, self._transcript.header))
                    self._publish_all(missed, publish)
                    async with self._places.place():
                        await self._run(publish)
                    self._enter(TurnState.FINISHED)
                    outcome = self._transcript.finished().reason.value
                    publish(self._transcript.finished())
            except asyncio.CancelledError:
                outcome = "stopped"
                self._enter(TurnState.STOPPED)
                raise
            except SpecdecError as error:
                outcome = error.reason
                self._enter(TurnState.FAILED)
                raise
            finally:
                self._log_end(outcome)
                if self._transcript_or_none is not None:
                    describe_generation(span, self._transcript_or_none, outcome)

    def _enter(self, state: TurnState) -> None:
        self.state = following(self.state, state)

    @property
    def _transcript(self) -> Transcript:
        if self._transcript_or_none is None:
            raise InternalError("a turn is published before it was read")
        return self._transcript_or_none

    def _transcript_of(self, header: Header) -> Transcript:
        return Transcript(self._turn, header, self._services.models.of_turn(header.model).tokenizer.decode)

    async def _run(self, publish: Callable[[Event], None]) -> None:
        """Publish the rest of the rounds. Generate if the turn is free; otherwise follow its owner."""
        retries = TurnRetries()
        while self._transcript.finish is None:
            try:
                await self._generate(publish)
            except SessionHeld as held:
                await self._follow(max(held.seconds, _PAUSE), publish)
            except (Fenced, TurnOver) as lost:
                _log.info("turn_lost", generation=self._turn.name, why=lost.message)
                self._publish_all(await self._reload(), publish)
                if self._transcript.finish is None:
                    await retries.wait(len(self._transcript.tokens), lost.message)

    async def _generate(self, publish: Callable[[Event], None]) -> None:
        """Generate the turn as its owner."""
        self._enter(TurnState.GENERATING)

        def shown(event: OutputRound) -> None:
            self._sent += 1
            publish(event)

        self._runner = TurnRunner(self._services, self._transcript, self._deadline, shown, self._read_tokens)
        try:
            await self._runner.run()
        finally:
            self._runner = None

    async def _follow(self, lease_left: float, publish: Callable[[Event], None]) -> None:
        """Publish the rounds of another owner until its lease, which has `lease_left` seconds left, expires."""
        self._enter(TurnState.FOLLOWING)
        sessions, turn = self._services.sessions, self._turn
        while lease_left > 0 and self._transcript.finish is None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded("the deadline passed")
            self._services.drain.check()
            length = len(self._transcript.tokens)
            await sessions.wait(turn.session_id, turn.number, length, min(lease_left, remaining))
            view = await self._read(length)
            self._publish_all(await self._take(view), publish)
            if not view.rounds:  # pause after a spurious wake-up, so as not to poll the store in a tight loop
                await asyncio.sleep(_PAUSE)
            lease_left = view.lease_left

    def _publish_all(self, rounds: Sequence[OutputRound], publish: Callable[[Event], None]) -> None:
        for shown in rounds:
            publish(shown)

    async def _reload(self) -> list[OutputRound]:
        """Read the whole turn again, which drops uncommitted rounds; return the rounds not published yet."""
        self._enter(TurnState.READING)
        view = await self._read(None)
        sent, self._sent = self._sent, 0
        self._transcript_or_none = self._transcript_of(header_from_bytes(view.params, view.prompt))
        rounds = await self._take(view)
        if len(rounds) < sent:
            raise CursorAhead("the session store lost rounds that were shown")
        return rounds[sent:]

    async def _read(self, after: int | None) -> TurnView:
        sessions, turn = self._services.sessions, self._turn
        return await retry(
            lambda: sessions.read(turn.session_id, turn.tenant, turn.number, after),
            self._services.settings.store_patience,
        )

    async def _take(self, view: TurnView) -> list[OutputRound]:
        """Add the rounds of a view to the transcript and return their output.

        Raises:
            SessionDiverged: the store's content differs from what was written.
        """
        rounds = []
        for stored in view.rounds:
            if self._transcript.finish is not None:
                raise SessionDiverged("the session store has rounds after the end of the turn")
            _, shown = self._transcript.take(round_from(stored, len(self._transcript.tokens)))
            rounds.append(shown)
            if len(rounds) % _IN_A_ROW == 0:
                await asyncio.sleep(0)
        self._sent += len(rounds)
        return rounds

    def _log_end(self, outcome: str) -> None:
        if outcome == "stopped":
            self._services.metrics.cancellations.labels("client").inc()
        transcript = self._transcript_or_none
        if transcript is None:
            return
        summary = transcript.summary
        _log.info(
            "generation_ended",
            generation=self._turn.name,
            ended=outcome,
            prompt_tokens=len(transcript.header.prompt),
            completion_tokens=transcript.committed,
            drafted=summary.num_draft_tokens,
            accepted=summary.num_accepted_draft_tokens,
            fallbacks=summary.fallbacks,
            seconds=round(time.monotonic() - self._began, 6),
        )


class TurnRetries:
    """Back-off and limit for consecutive losses of one turn."""

    def __init__(self) -> None:
        self._length = -1
        self._in_a_row = 0

    async def wait(self, length: int, why: str) -> None:
        """Record a loss and back off exponentially; there is no pause after progress.

        Args:
            length: length of the turn in tokens; growth since the previous loss is progress.
            why: reason for the error message.

        Raises:
            SessionDiverged: too many consecutive losses without progress.
        """
        self._in_a_row = 0 if length > self._length else self._in_a_row + 1
        self._length = length
        if self._in_a_row > MOST:
            raise SessionDiverged(f"the turn was lost {MOST} times in a row and came no further: {why}")
        if self._in_a_row:
            longest = min(_FIRST * 2.0**self._in_a_row, _LONGEST)
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))


def describe_generation(span: TraceSpan, transcript: Transcript, outcome: str) -> None:
    """Set the span's name, and its attributes for request and result; `outcome` is the reason for the end."""
    if not span.records:
        return
    header, summary = transcript.header, transcript.summary
    call = header.call
    operation = _operation(header.answer_format)
    asked: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "specdec",
        "gen_ai.request.model": header.model,
        "gen_ai.request.max_tokens": call.max_tokens,
        "gen_ai.request.temperature": call.sampling.temperature,
        "gen_ai.request.top_p": call.sampling.top_p,
        "gen_ai.request.seed": call.sampling.seed,
    }
    came: Attributes = {
        "gen_ai.response.id": transcript.turn.name,
        "gen_ai.response.model": header.model,
        "gen_ai.response.finish_reasons": [outcome],
        "gen_ai.usage.input_tokens": len(header.prompt),
        "gen_ai.usage.output_tokens": transcript.committed,
        "specdec.mode": call.speculation.mode.value,
        "specdec.drafted": summary.num_draft_tokens,
        "specdec.accepted": summary.num_accepted_draft_tokens,
    }
    span.describe({**asked, **came}, f"{operation} {header.model}")


def _operation(answer_format: str) -> str:
    """Return the OpenTelemetry operation name: chat or completion over HTTP, generate_content over gRPC."""
    if not answer_format:
        return "generate_content"
    return "chat" if "chat" in answer_format.split() else "text_completion"
