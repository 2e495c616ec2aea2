"""A turn while this gateway owns it: rounds from the verifiers, committed, and only then shown.

Whatever is lost, nothing shown is taken back or said twice.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.store.values import RoundCommit
from gateway.turns.events import Round
from gateway.turns.interruption import until_set
from gateway.turns.ownership import OwnedSession
from gateway.turns.services import Services
from gateway.turns.transcript import Step, Transcript
from gateway.turns.turn import note_of
from gateway.verifiers.failover import Failover
from gateway.verifiers.verifier import Call, VerifiedRound
from specdec.errors import Fenced
from specdec.rules.params import FinishReason


class TurnRunner:
    """One stay of a turn with this owner; `transcript` must be as long as the log."""

    def __init__(self, services: Services, transcript: Transcript, deadline: float) -> None:
        self._services = services
        self._transcript = transcript
        self._deadline = deadline
        self._session = OwnedSession(
            services.sessions, transcript.turn.session_id, services.owner, services.metrics, transcript.turn.number
        )
        self._epoch = 0
        """Taken, and not used for a call yet."""
        self._last = time.monotonic()

    async def rounds(self) -> AsyncGenerator[Round]:
        """Own the turn and go on until it has a finish.

        Raises:
            SessionHeld: another owner has it.
            TurnOver: it ended meanwhile.
            Fenced: a newer owner has it, or had it: the log is longer than the transcript.
            SpecdecError: something failed that could not be made good.
        """
        services, header = self._services, self._transcript.header
        failover = Failover(services.pool, services.settings.failover, services.metrics)
        async with self._session.kept(services.settings.lease):
            # Owned before a verifier is looked for: whoever must wait for another owner needs none.
            self._epoch = await self._own()
            first, _ = await services.pool.find(
                self._session.id, header.system_fingerprint, services.settings.failover.arrival
            )
            rounds = failover.rounds(first, header.system_fingerprint, self._next_call, self._deadline)
            async with aclosing(rounds), aclosing(until_set(rounds, self._session.cancelled)) as wanted:
                async for verified in wanted:
                    for shown in await self._commit(verified):
                        yield shown
                    if self._transcript.finish is not None:
                        return
                    services.drain.check()
            yield await self._end()

    async def _own(self) -> int:
        lease = await self._session.acquire(self._services.settings.store_patience)
        if lease.n != len(self._transcript.tokens):
            raise Fenced("another owner has written to the log")
        return lease.epoch

    async def _next_call(self) -> Call:
        """The call for the rest of the generation, under a new epoch."""
        epoch, self._epoch = self._epoch or await self._own(), 0
        return self._transcript.header.plan.call(self._session.id, epoch, self._transcript.tokens)

    async def _commit(self, verified: VerifiedRound) -> list[Round]:
        """Have the store keep the round; when someone asked for the end, end the turn behind it."""
        step = self._transcript.take(verified)
        cancelled = await self._store(step)
        self._observe(step.verified)
        if not cancelled or self._transcript.finish is not None:
            return [step.shown]
        return [step.shown, await self._end()]

    async def _end(self) -> Round:
        """End the turn where it stands."""
        base = len(self._transcript.tokens)
        end = self._transcript.take(VerifiedRound(base, (), (), finish=FinishReason.STOP))
        await self._store(end)
        return end.shown

    async def _store(self, step: Step) -> bool:
        verified = step.verified
        commit = RoundCommit(
            session_id=self._session.id,
            epoch=self._session.epoch,
            base=verified.base_len,
            tokens=verified.tokens,
            finish=verified.finish.value if verified.finish else "",
            note=note_of(verified),
        )
        return await self._session.commit(commit)

    def _observe(self, kept: VerifiedRound) -> None:
        metrics, now = self._services.metrics, time.monotonic()
        first = self._transcript.committed == len(kept.tokens)
        (metrics.first_token_seconds if first else metrics.round_seconds).observe(now - self._last)
        self._last = now
        metrics.tokens.labels("output").inc(len(kept.tokens))
