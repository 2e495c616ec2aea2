"""Generates a turn while this gateway owns it. Every round is committed to the session store before it is shown.

Failures never revoke or repeat output that was shown.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from gateway.callers.caller import key_tenant
from gateway.store.sessions import SessionStore
from gateway.store.values import Lease, RoundCommit
from gateway.tasks import retry
from gateway.turns.events import OutputRound
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import Turn, note_of
from gateway.verifiers.client import Progress, VerifierClient
from gateway.verifiers.failover import Failover
from gateway.verifiers.pass_loop import PassLoop
from gateway.verifiers.placement import Prefix
from gateway.verifiers.round_streams import RoundCheck
from specdec.errors import Fenced, SpecdecError
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GenerationCall, Round, VerifierInfo

WINDOW = 16
"""Most tokens that a generation may be ahead of its fastest reader. A gateway that is slower than its verifier falls at
most this many passes behind, and a new generation waits that long."""
HELD_WINDOW = 256
"""Most tokens that a generation with held rounds may be ahead: several commits, so that it does not wait for them."""
UNLIMITED = 2**31 - 1
"""Credit of a generation without flow control."""
RELEASE_TIMEOUT = 1.0
"""Timeout, in seconds, for releasing the session of a generation that ends early."""

_log = structlog.get_logger()


@dataclass(slots=True)
class TurnOutput:
    """Output of a turn on its way to store and readers, shared by the turn's attempts."""

    transcript: Transcript
    """Rounds received, committed or about to be."""
    publish: Callable[[OutputRound], None]
    """Called after each commit with the output to show."""
    read: int | None = None
    """Number of output tokens sent to the fastest reader; None without a reader."""
    held: bool = False
    """Whether rounds are held, because all readers wait for the end and no stop string could end the output."""
    last_commit: float = 0.0
    """Time of the last commit, or of the turn's start; by `time.monotonic`."""

    @property
    def credit(self) -> int:
        """Longest sequence, in tokens, that the verifier may generate now."""
        return UNLIMITED if self.read is None else len(self.transcript.header.prompt) + self.read + self.window

    @property
    def window(self) -> int:
        """Most tokens that the generation may be ahead of its fastest reader."""
        return HELD_WINDOW if self.held else WINDOW


class Attempt:
    """Receives the rounds of a turn from one verifier; implements `gateway.verifiers.pass_loop.Receiver`."""

    def __init__(self, services: Services, output: TurnOutput, call: GenerationCall, vocab_size: int) -> None:
        self._services = services
        self._output = output
        self._call = call
        self._check = RoundCheck(call, vocab_size)
        self._tenant_tokens = services.metrics.tenant_tokens.labels(key_tenant(output.transcript.turn.tenant), "output")
        model = services.models.of_turn(output.transcript.header.model)
        self._model = model.parent or model.name
        self._pending: deque[tuple[Round, OutputRound]] = deque()
        """Rounds received that wait for the store's answer."""
        self._credited = output.credit
        self._finished = False
        """Whether the verifier has ended the generation."""
        self._stopping = False
        """Whether further rounds are ignored."""
        self._refused = False
        """Whether the store refused a round; later rounds are then not shown."""
        self._error: SpecdecError | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, loop: PassLoop, progress: Progress, seconds: float) -> None:
        """Generate until the turn finishes, is stopped or cancelled, or the drain timeout passes.

        The verifier may take at most `seconds`.

        Raises:
            SpecdecError: the verifier or the ownership was lost. Earlier rounds are committed and shown.
        """
        self._progress = progress
        self._slot = loop.open(self._call, self, self._credited, seconds)
        try:
            await self._over
        finally:
            self._slot.close(finished=self._finished)

    def stop(self) -> None:
        """Ignore further rounds; `run` returns after the store has answered the pending ones."""
        self._stopping = True
        self._settle()

    def reader_moved(self) -> None:
        """Send more credit if readers took at least half a window since the last update."""
        self._slot.hold(self._output.held)
        credit = self._output.credit
        if credit - self._credited >= self._output.window // 2:
            self._credited = credit
            self._slot.credit(credit)

    def take(self, verified: Round) -> RoundCommit | None:
        """Return the commit of a round, cut where the output ends; None if rounds are ignored."""
        if self._stopping or self._error or self._output.transcript.finish is not None:
            return None
        self._check.take(verified)
        self._finished = verified.finish is not None
        kept, shown = self._output.transcript.take(verified)
        self._pending.append((kept, shown))
        return commit_of(kept, self._call.session_id, self._call.epoch)

    def committed(self, answer: bool | SpecdecError) -> None:
        """Show the oldest pending round, unless its commit or one before it failed."""
        kept, shown = self._pending.popleft()
        if isinstance(answer, SpecdecError):
            self._error, self._refused = answer, True
        elif not self._refused:
            self._show(kept, shown)
            self._stopping |= answer or kept.finish is not None or self._services.drain.expired
        self._settle()

    def lost(self, error: SpecdecError) -> None:
        """End the attempt with this error."""
        self._error = self._error or error
        self._settle()

    def _show(self, kept: Round, shown: OutputRound) -> None:
        output, metrics, now = self._output, self._services.metrics, time.monotonic()
        first = shown.committed == len(kept.tokens)
        (metrics.first_token_seconds if first else metrics.round_seconds).observe(now - output.last_commit)
        output.last_commit = now
        metrics.output_tokens.inc(len(kept.tokens))
        self._tenant_tokens.inc(len(kept.tokens))
        metrics.speculation.count(self._model, len(kept.draft), kept.accepted)
        output.publish(shown)
        self._progress(output.transcript.tokens)

    def _settle(self) -> None:
        """End `run` if no commit is pending and the attempt failed or stops."""
        if self._pending or self._over.done():
            return
        if self._error is not None:
            self._over.set_exception(self._error)
        elif self._stopping:
            self._over.set_result(None)


def commit_of(kept: Round, session_id: str, epoch: int) -> RoundCommit:
    """Return the store commit of a round."""
    return RoundCommit(
        session_id=session_id,
        epoch=epoch,
        base=kept.base_len,
        tokens=kept.tokens,
        finish=kept.finish.value if kept.finish else "",
        note=note_of(kept),
    )


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
        self._output = TurnOutput(transcript, publish, read, last_commit=time.monotonic())
        self._session = OwnedSession(services, transcript.turn)
        self._unused_epoch = 0
        """Acquired epoch that no call has used yet; 0 if there is none."""
        self._prefix: Prefix = ()
        """Prefix of the prompt, by which a verifier is chosen."""
        self._attempt: Attempt | None = None
        """Attempt at the current verifier, or None."""
        self._waiting: asyncio.Timeout | None = None
        """Timeout that a cancellation of the turn uses to end the wait for a verifier."""

    @property
    def committed(self) -> int:
        """Number of committed output tokens; exact between two attempts."""
        return self._transcript.committed

    def reader_is_at(self, read: int | None, *, at_end: bool = False) -> None:
        """Set the number of output tokens sent to the fastest reader; None without a reader, so flow is unlimited.

        `at_end` is whether all readers take the output at its end, so that rounds may be committed together.
        """
        self._output.read, self._output.held = read, at_end and not self._transcript.header.stop
        if self._attempt is not None:
            self._attempt.reader_moved()

    async def run(self) -> None:
        """Acquire the turn and generate until it finishes.

        Raises:
            SessionHeld: another gateway owns the turn.
            TurnOver: the turn has already ended.
            Fenced: another gateway took the turn over, or added rounds that the transcript does not have.
            Draining: the drain timeout passed before the generation finished.
            SpecdecError: a failure could not be recovered.
        """
        async with self._session.kept(self._cancel):
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
        place = {"epoch": call.epoch, "verifier": verifier.address, "committed": len(call.tokens)}
        _log.debug("attempt_began", generation=self._transcript.turn.name, **place)
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
    """Session of an opened turn, writable by its owner only; implements `gateway.turns.broadcast.Owned`."""

    def __init__(self, services: Services, turn: Turn) -> None:
        self._services = services
        self._on_cancel: Callable[[], None] | None = None
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
        if self._on_cancel is not None and not self.cancelled:
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
    async def kept(self, on_cancel: Callable[[], None]) -> AsyncIterator[None]:
        """Renew the lease inside the context, then release the session unless its turn ended.

        A cancellation of the turn by its caller calls `on_cancel` once.
        """
        self._on_cancel = on_cancel
        try:
            with self._services.leases.held(self):
                yield
        finally:
            self._on_cancel = None  # breaks a reference cycle, so that the tokens are freed at once
            if self.epoch and not self.done:
                await release(self._services.sessions, self.session_id, self.epoch)


async def release(sessions: SessionStore, session_id: str, epoch: int) -> None:
    """Release a session within RELEASE_TIMEOUT; otherwise its lease expires by itself."""
    with suppress(SpecdecError, TimeoutError):
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await sessions.release(session_id, epoch)
