"""The events of one turn, wherever its rounds come from: generated here, committed by another gateway, or read back."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import structlog

from gateway.store.retry import retry
from gateway.store.values import TurnView
from gateway.turns.events import Event, OutputRound, Started
from gateway.turns.services import Services
from gateway.turns.state import TurnState, following
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
"""Setbacks in a row, with no token between them, after which a turn is given up."""
_FIRST = 0.05
"""Longest pause in seconds before the second try; it doubles with each further one."""
_LONGEST = 1.0
"""Longest pause of all, in seconds."""
_PAUSE = 0.05
"""Seconds between two looks at a turn of another owner in which nothing is new, and between two tries to own it."""

_log = structlog.get_logger()


class TurnStream:
    """Publishes the events of a turn once, from its beginning to its end; as `gateway.turns.broadcast.Generated`."""

    def __init__(self, services: Services, turn: Turn, deadline: float, header: Header | None = None) -> None:
        """Stream a turn.

        Args:
            turn: the turn, which the session store has.
            deadline: the `time.monotonic()` at which the turn is given up.
            header: of a turn that was opened just now and has no rounds; None reads header and rounds from the store.
        """
        self._services = services
        self._turn = turn
        self._deadline = deadline
        self._transcript_or_none = self._transcript_of(header) if header else None
        self.state = TurnState.OPENED
        self._sent = 0
        """Rounds that were published."""
        self._read_tokens: int | None = None
        self._runner: TurnRunner | None = None
        """What generates the turn; None while this gateway does not own it."""
        self._began = time.monotonic()

    def reader_is_at(self, read: int | None) -> None:
        """Note how many output tokens the fastest reader has; None while there is no reader to wait for."""
        self._read_tokens = read
        if self._runner is not None:
            self._runner.reader_is_at(read)

    async def run(self, publish: Callable[[Event], None]) -> None:
        """Publish Started, then OutputRounds, then Finished; when cancelled, release the turn as it stands.

        Raises:
            CursorAhead: the session store lost rounds that were published.
            SpecdecError: something failed that could not be made good.
        """
        outcome = "error"
        with part_span("generate") as span:
            try:
                with self._services.drain.generation(), self._services.generations.take(self._turn.tenant):
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
        """Publish all but Finished: generate where the turn is free, and follow its owner where it is not."""
        missed = [] if self._transcript_or_none else await self._reload()
        publish(Started(self._turn, self._transcript.header))
        self._publish_all(missed, publish)
        setbacks = Setbacks()
        while self._transcript.finish is None:
            try:
                await self._generate(publish)
            except SessionHeld as held:
                await self._follow(max(held.seconds, _PAUSE), publish)
            except (Fenced, TurnOver) as lost:
                _log.info("turn_lost", generation=self._turn.name, why=lost.message)
                self._publish_all(await self._reload(), publish)
                if self._transcript.finish is None:
                    await setbacks.wait(len(self._transcript.tokens), lost.message)

    async def _generate(self, publish: Callable[[Event], None]) -> None:
        """Generate as the owner."""
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
        """Publish the rounds that another owner commits, until its lease, of `lease_left` seconds at first, is over."""
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
            self._publish_all(self._take(view), publish)
            if not view.rounds:  # a store that wakes its waiters for nothing is not asked without a pause
                await asyncio.sleep(_PAUSE)
            lease_left = view.lease_left

    def _publish_all(self, rounds: Sequence[OutputRound], publish: Callable[[Event], None]) -> None:
        for shown in rounds:
            publish(shown)

    async def _reload(self) -> list[OutputRound]:
        """Read the whole turn again, which drops rounds that were not committed; returns what was not streamed yet."""
        self._enter(TurnState.READING)
        view = await self._read(None)
        sent, self._sent = self._sent, 0
        self._transcript_or_none = self._transcript_of(header_from_bytes(view.params, view.prompt))
        rounds = self._take(view)
        if len(rounds) < sent:
            raise CursorAhead("the session store lost rounds that were shown")
        return rounds[sent:]

    async def _read(self, after: int | None) -> TurnView:
        sessions, turn = self._services.sessions, self._turn
        return await retry(
            lambda: sessions.read(turn.session_id, turn.tenant, turn.number, after),
            self._services.settings.store_patience,
        )

    def _take(self, view: TurnView) -> list[OutputRound]:
        """Add the rounds of a view to the transcript.

        Raises:
            SessionDiverged: the store has not what was written.
        """
        rounds = []
        for stored in view.rounds:
            if self._transcript.finish is not None:
                raise SessionDiverged("the session store has rounds behind the end of the turn")
            _, shown = self._transcript.take(round_from(stored, len(self._transcript.tokens)))
            rounds.append(shown)
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


class Setbacks:
    """Counts the setbacks of one turn."""

    def __init__(self) -> None:
        self._length = -1
        self._in_a_row = 0

    async def wait(self, length: int, why: str) -> None:
        """Note a setback, and wait before the next try: not after progress, longer and longer without.

        Args:
            length: of the turn, in tokens; more than at the setback before is progress.

        Raises:
            SessionDiverged: there were too many without progress.
        """
        self._in_a_row = 0 if length > self._length else self._in_a_row + 1
        self._length = length
        if self._in_a_row > MOST:
            raise SessionDiverged(f"the turn was lost {MOST} times in a row and came no further: {why}")
        if self._in_a_row:
            longest = min(_FIRST * 2.0**self._in_a_row, _LONGEST)
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))


def describe_generation(span: TraceSpan, transcript: Transcript, outcome: str) -> None:
    """Name the span and tell what was asked for, and what came of it; `outcome` is how the generation ended."""
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
    """A chat or a completion over HTTP; over gRPC, a prompt of any kind."""
    if not answer_format:
        return "generate_content"
    return "chat" if "chat" in answer_format.split() else "text_completion"
