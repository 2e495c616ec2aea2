"""Generates a turn while this gateway owns it: every round is committed to the session store before it is shown.

Whatever is lost on the way, nothing that was shown is taken back or shown twice.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from gateway.store.values import RoundCommit
from gateway.tasks import cancel_and_wait
from gateway.turns.events import OutputRound
from gateway.turns.ownership import OwnedSession
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import note_of
from gateway.verifiers.failover import Failover
from specdec.errors import Fenced
from specdec.rules.params import FinishReason
from specdec.wire.generation import GenerationCall, Round

_Item = TypeVar("_Item")


class TurnRunner:
    """Takes the ownership of one turn and generates to its end."""

    def __init__(self, services: Services, transcript: Transcript, deadline: float) -> None:
        """`transcript` has every round that is committed; `deadline` is a `time.monotonic()`."""
        self._services = services
        self._transcript = transcript
        self._deadline = deadline
        self._session_id = transcript.turn.session_id
        self._session = OwnedSession(services, transcript.turn)
        self._unused_epoch = 0
        """An epoch that was acquired and that no call has used yet; 0 when there is none."""
        self._last_commit = time.monotonic()

    async def rounds(self) -> AsyncGenerator[OutputRound]:
        """Own the turn and generate until it has a finish.

        Raises:
            SessionHeld: another gateway owns the turn.
            TurnOver: the turn has ended meanwhile.
            Fenced: another gateway owns the turn now, or has added rounds that the transcript does not have.
            SpecdecError: something failed that could not be made good.
        """
        services, header = self._services, self._transcript.header
        pool = services.models.of_turn(header.model).pool
        failover = Failover(pool, services.settings.failover, services.metrics)
        async with self._session.kept():
            # The turn is acquired before a verifier is chosen: a gateway that must wait for another owner needs none.
            self._unused_epoch = await self._acquire()
            first, info = await pool.wait_for_verifier(
                self._session_id, header.system_fingerprint, services.settings.failover.arrival
            )
            rounds = failover.rounds(first, info, self._next_call, self._deadline)
            async with aclosing(rounds), aclosing(until_set(rounds, self._session.cancelled)) as until_cancelled:
                async for verified in until_cancelled:
                    for shown in await self._commit(verified):
                        yield shown
                    if self._transcript.finish is not None:
                        return
                    services.drain.check()
            yield await self._end()

    async def _acquire(self) -> int:
        """Own the turn under a new epoch, which is returned."""
        lease = await self._session.acquire()
        if lease.n != len(self._transcript.tokens):
            raise Fenced("another owner has written to the log")
        return lease.epoch

    async def _next_call(self) -> GenerationCall:
        """The call for the rest of the turn, under an epoch that no other call has."""
        epoch, self._unused_epoch = self._unused_epoch or await self._acquire(), 0
        call = self._transcript.header.call
        return replace(call, session_id=self._session_id, epoch=epoch, tokens=tuple(self._transcript.tokens))

    async def _commit(self, verified: Round) -> list[OutputRound]:
        """Commit a round; where the caller has cancelled the turn, commit its end, too."""
        kept, shown = self._transcript.take(verified)
        cancelled = await self._store(kept)
        self._observe(kept)
        if not cancelled or self._transcript.finish is not None:
            return [shown]
        return [shown, await self._end()]

    async def _end(self) -> OutputRound:
        """Commit the end of the turn behind the tokens it has."""
        end = Round(base_len=len(self._transcript.tokens), finish=FinishReason.STOP)
        kept, shown = self._transcript.take(end)
        await self._store(kept)
        return shown

    async def _store(self, kept: Round) -> bool:
        """Write one round; returns whether the caller has cancelled the turn."""
        commit = RoundCommit(
            session_id=self._session_id,
            epoch=self._session.epoch,
            base=kept.base_len,
            tokens=kept.tokens,
            finish=kept.finish.value if kept.finish else "",
            note=note_of(kept),
        )
        return await self._session.commit(commit)

    def _observe(self, kept: Round) -> None:
        metrics, now = self._services.metrics, time.monotonic()
        first = self._transcript.committed == len(kept.tokens)
        (metrics.first_token_seconds if first else metrics.round_seconds).observe(now - self._last_commit)
        self._last_commit = now
        metrics.tokens.labels("output").inc(len(kept.tokens))
        metrics.speculation.count(self._transcript.header.model, len(kept.draft), kept.accepted)


async def until_set(items: AsyncGenerator[_Item], event: asyncio.Event) -> AsyncGenerator[_Item]:
    """The items up to the moment `event` is set; the item that is waited for then is cancelled, and `items` ends."""
    waiting: asyncio.Timeout | None = None

    def interrupt(_: object) -> None:
        if waiting is not None:
            waiting.reschedule(0.0)

    stop = asyncio.create_task(event.wait())
    stop.add_done_callback(interrupt)
    try:
        while not event.is_set():
            try:
                async with asyncio.timeout(None) as waiting:
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if event.is_set():
                    return
                raise
            finally:
                waiting = None
            yield item
    finally:
        await cancel_and_wait(stop)
