"""The events of one turn, from wherever they can be had: run here, committed by another gateway, or read back."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from gateway.store.retry import retry
from gateway.store.values import TurnView
from gateway.turns.events import Event, Round
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import Header, Turn, header_from_bytes, round_from
from gateway.turns.turn_runner import TurnRunner
from specdec.errors import CursorAhead, DeadlineExceeded, Fenced, InternalError, SessionHeld, SpecdecError, TurnOver

_log = structlog.get_logger()


class TurnStream:
    """Tells a turn once, from its beginning to its end."""

    def __init__(self, services: Services, turn: Turn, deadline: float, header: Header | None = None) -> None:
        """Args: header: of a turn that has just been opened and has no rounds; None reads it from the store."""
        self._services = services
        self._turn = turn
        self._deadline = deadline
        self._decode = services.tokenizer.decode
        self._transcript = Transcript(turn, header, self._decode) if header else None
        self._told = 0
        self._began = time.monotonic()

    async def events(self) -> AsyncGenerator[Event]:
        """Started, then Rounds, then Finished; closing it early gives the turn back as it stands.

        Raises:
            CursorAhead: the store lost rounds that were told.
            SpecdecError: something failed that could not be made good.
        """
        ended = "error"
        try:
            with self._services.drain.generation():
                missed = [] if self._transcript else await self._reload()
                yield self._known.started()
                for round_ in missed:
                    yield round_
                async with aclosing(self._rounds()) as rounds:
                    async for shown in rounds:
                        yield shown
                ended = self._known.finished().reason.value
                yield self._known.finished()
        except (GeneratorExit, asyncio.CancelledError):
            ended = ended if ended != "error" else "stopped"
            raise
        except SpecdecError as error:
            ended = error.reason
            raise
        finally:
            self._note_end(ended)

    @property
    def _known(self) -> Transcript:
        if self._transcript is None:
            raise InternalError("a turn is told before it is known")
        return self._transcript

    async def _rounds(self) -> AsyncGenerator[Round]:
        """Go on as the owner where that is free, and behind the owner where it is not."""
        while self._known.finish is None:
            try:
                run = TurnRunner(self._services, self._known, self._deadline)
                async with aclosing(run.rounds()) as rounds:
                    async for shown in rounds:
                        self._told += 1
                        yield shown
            except SessionHeld as held:
                async with aclosing(self._follow(held.seconds)) as rounds:
                    async for shown in rounds:
                        yield shown
            except (Fenced, TurnOver) as lost:
                _log.info("turn_lost", generation=self._turn.name, why=lost.message)
                for shown in await self._reload():
                    yield shown

    async def _follow(self, left: float) -> AsyncGenerator[Round]:
        """The rounds another owner commits, until its lease is over."""
        sessions, turn = self._services.sessions, self._turn
        while left > 0 and self._known.finish is None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded("the deadline passed")
            self._services.drain.check()
            length = len(self._known.tokens)
            await sessions.wait(turn.session_id, turn.number, length, min(left, remaining))
            view = await self._read(length)
            for shown in self._take(view):
                yield shown
            left = view.lease_left

    async def _reload(self) -> list[Round]:
        """Read the whole turn; what was told is not told again, and what was not committed never happened."""
        view = await self._read(None)
        told, self._told = self._told, 0
        header = header_from_bytes(view.params, view.prompt)
        self._transcript = Transcript(self._turn, header, self._decode)
        rounds = self._take(view)
        if len(rounds) < told:
            raise CursorAhead("the session store lost rounds that were shown")
        return rounds[told:]

    async def _read(self, after: int | None) -> TurnView:
        sessions, turn = self._services.sessions, self._turn
        return await retry(
            lambda: sessions.read(turn.session_id, turn.tenant, turn.number, after),
            self._services.settings.store_patience,
        )

    def _take(self, view: TurnView) -> list[Round]:
        shown = []
        for stored in view.rounds:
            shown.append(self._known.take(round_from(stored, len(self._known.tokens))).shown)
        self._told += len(shown)
        return shown

    def _note_end(self, ended: str) -> None:
        if ended == "stopped":
            self._services.metrics.cancellations.labels("client").inc()
        if self._transcript is None:
            return
        summary = self._transcript.summary
        _log.info(
            "generation_ended",
            generation=self._turn.name,
            ended=ended,
            prompt_tokens=len(self._transcript.header.plan.prompt),
            completion_tokens=self._transcript.committed,
            drafted=summary.num_draft_tokens,
            accepted=summary.num_accepted_draft_tokens,
            fallbacks=dict(summary.fallbacks),
            seconds=round(time.monotonic() - self._began, 6),
        )
