"""Generates a turn while this gateway owns it. Every round is committed to the session store before it is shown.

Failures never revoke or repeat output that was shown.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from gateway.store.retry import retry
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.turns.attempt import Attempt, TurnOutput, commit_of
from gateway.turns.events import OutputRound
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import Turn
from gateway.verifiers.client import VerifierClient
from gateway.verifiers.failover import Failover
from gateway.verifiers.placement import Prefix
from specdec.errors import Fenced, SpecdecError
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GenerationCall, Round, VerifierInfo

RELEASE_TIMEOUT = 1.0
"""Timeout, in seconds, for releasing the session of a generation that ends early."""


class TurnRunner:
    """Acquires one turn and generates it to its end."""

    def __init__(
        self,
        services: Services,
        transcript: Transcript,
        deadline: float,
        publish: Callable[[OutputRound], None],
        read: int | None = None,
    ) -> None:
        """Make a runner.

        Args:
            transcript: transcript with every committed round.
            deadline: time limit, by `time.monotonic()`.
            publish: called after each commit with the output to show.
            read: see `reader_is_at`.
        """
        self._services = services
        self._transcript = transcript
        self._deadline = deadline
        self._output = TurnOutput(transcript, publish, read, time.monotonic())
        self._session = OwnedSession(services, transcript.turn, self._cancel)
        self._unused_epoch = 0
        """Acquired epoch that no call has used yet; 0 if there is none."""
        self._prefix: Prefix = ()
        """Prefix that places the generation."""
        self._attempt: Attempt | None = None
        """Attempt at the current verifier, or None."""
        self._waiting: asyncio.Timeout | None = None
        """Timeout that a cancellation of the turn uses to end the wait for a verifier."""

    @property
    def committed(self) -> int:
        """Number of committed output tokens; exact between two attempts."""
        return self._transcript.committed

    def reader_is_at(self, read: int | None) -> None:
        """Set the number of output tokens sent to the fastest reader; None without a reader, so flow is unlimited."""
        self._output.read = read
        if self._attempt is not None:
            self._attempt.renew_credit()

    async def run(self) -> None:
        """Acquire the turn and generate until it finishes.

        Raises:
            SessionHeld: another gateway owns the turn.
            TurnOver: the turn has already ended.
            Fenced: another gateway took the turn over, or added rounds that the transcript does not have.
            Draining: the drain timeout passed before the generation finished.
            SpecdecError: a failure could not be recovered.
        """
        async with self._session.kept():
            # Acquire the turn before choosing a verifier: a gateway that must wait for another owner needs none.
            self._unused_epoch = await self._acquire()
            try:
                async with asyncio.timeout(None) as self._waiting:
                    await self._generate()
            except TimeoutError:
                if not self._session.cancelled:
                    raise
            finally:
                self._waiting = None
            if self._transcript.finish is None:
                self._services.drain.check()
                await self._end()
            self._session.done = True

    async def _generate(self) -> None:
        """Generate until the turn finishes or is cancelled, with failover between verifiers."""
        services, header = self._services, self._transcript.header
        pool, settings = services.models.of_turn(header.model).pool, services.settings.failover
        session_id, fingerprint = self._transcript.turn.session_id, header.system_fingerprint
        self._prefix = pool.prefix(header.call, fingerprint)
        first, info = await pool.wait_for_verifier(session_id, fingerprint, settings.arrival, prefix=self._prefix)
        await Failover(pool, settings, services.metrics).run(self, first, info, self._deadline)

    async def next_call(self) -> GenerationCall:
        """Return the call for the rest of the turn, under an unused epoch."""
        epoch, self._unused_epoch = self._unused_epoch or await self._acquire(), 0
        call, session_id = self._transcript.header.call, self._transcript.turn.session_id
        return replace(call, session_id=session_id, epoch=epoch, tokens=tuple(self._transcript.tokens))

    async def generate_at(
        self, verifier: VerifierClient, info: VerifierInfo, call: GenerationCall, seconds: float
    ) -> None:
        """Generate at one verifier for at most `seconds`; implements `gateway.verifiers.failover.Continued`."""
        over = time.monotonic() + seconds
        self._services.models.of_turn(self._transcript.header.model).pool.note(verifier, self._prefix)
        progress = await verifier.begin(call, seconds)
        self._attempt = Attempt(self._services, self._output, call, info.vocab_size)
        try:
            await self._attempt.run(self._services.passes.of(verifier, info), progress, over - time.monotonic())
        finally:
            self._attempt = None

    async def _acquire(self) -> int:
        """Acquire the turn under a new epoch and return the epoch."""
        lease = await self._session.acquire()
        if lease.n != len(self._transcript.tokens):
            raise Fenced("another owner has written to the log")
        return lease.epoch

    def _cancel(self) -> None:
        """End the turn after its pending commits."""
        if self._attempt is not None:
            self._attempt.stop()
        elif self._waiting is not None:
            self._waiting.reschedule(0.0)

    async def _end(self) -> None:
        """Commit the end of the turn at its current length, and publish it."""
        end = Round(base_len=len(self._transcript.tokens), finish=FinishReason.STOP)
        kept, shown = self._transcript.take(end)
        await self._session.commit(commit_of(kept, self._session.session_id, self._session.epoch))
        self._output.publish(shown)


class OwnedSession:
    """Session of an opened turn, writable by its owner only; implements `gateway.turns.leases.Owned`."""

    def __init__(self, services: Services, turn: Turn, on_cancel: Callable[[], None]) -> None:
        """Args: on_cancel: called once, when the caller cancels the turn."""
        self._services = services
        self._on_cancel = on_cancel
        self.session_id = turn.session_id
        self.turn = turn.number
        self.epoch = 0
        """Fencing number of the ownership; 0 before it is acquired."""
        self.done = False
        """Whether the turn's end is committed."""
        self.cancelled = False
        """Whether the caller has cancelled the turn."""

    def cancel(self) -> None:
        """Record the caller's cancellation of the turn."""
        if not self.cancelled:
            self.cancelled = True
            self._on_cancel()

    async def acquire(self) -> Lease:
        """Acquire the session, or acquire it again under a new epoch; raises the errors of `SessionStore.acquire`."""
        services = self._services
        with services.metrics.store_seconds.labels("acquire").time():
            lease = await retry(
                lambda: services.sessions.acquire(self.session_id, services.owner, self.turn),
                services.settings.store_patience,
            )
        self.epoch = lease.epoch
        return lease

    async def commit(self, commit: RoundCommit) -> None:
        """Commit one round; raises the error that `SessionStore.commit` returns for it."""
        (answer,) = await self._services.sessions.commit([commit])
        if isinstance(answer, SpecdecError):
            raise answer

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Renew the lease inside the context, then release the session unless its turn ended."""
        try:
            async with self._services.leases.held(self):
                yield
        finally:
            if self.epoch and not self.done:
                await release(self._services.sessions, self.session_id, self.epoch)


async def release(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Release a session within RELEASE_TIMEOUT; otherwise its lease expires by itself."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
