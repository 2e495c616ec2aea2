"""One attempt to generate a turn at one verifier. Rounds are committed in order and published after the commit."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.callers.caller import key_tenant
from gateway.store.values import RoundCommit
from gateway.turns.events import OutputRound
from gateway.turns.services import Services
from gateway.turns.transcript import Transcript
from gateway.turns.turn import note_of
from gateway.verifiers.client import Progress
from gateway.verifiers.pass_loop import PassLoop
from gateway.verifiers.rounds import RoundCheck
from specdec.errors import SpecdecError
from specdec.wire.generation import GenerationCall, Round

WINDOW = 64
"""Most tokens that a generation may be ahead of its fastest reader."""
UNLIMITED = 2**31 - 1
"""Credit of a generation without flow control."""


@dataclass(slots=True)
class TurnOutput:
    """Output of a turn on its way to store and readers, shared by the turn's attempts."""

    transcript: Transcript
    """Rounds received, committed or about to be."""
    publish: Callable[[OutputRound], None]
    """Called after each commit with the output to show."""
    read: int | None = None
    """Number of output tokens sent to the fastest reader; None without a reader."""
    last_commit: float = 0.0
    """Time of the last commit, or of the turn's start; by `time.monotonic`."""

    @property
    def credit(self) -> int:
        """Longest sequence, in tokens, that the verifier may generate now."""
        return UNLIMITED if self.read is None else len(self.transcript.header.prompt) + self.read + WINDOW


class Attempt:
    """Receives the rounds of a turn from one verifier; implements `gateway.verifiers.pass_loop.Receiver`."""

    def __init__(self, services: Services, output: TurnOutput, call: GenerationCall, vocab_size: int) -> None:
        self._services = services
        self._output = output
        self._call = call
        self._check = RoundCheck(call, vocab_size)
        self._tenant_tokens = services.metrics.tenant_tokens.labels(key_tenant(output.transcript.turn.tenant), "output")
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

    def renew_credit(self) -> None:
        """Send more credit if readers took at least half a window since the last update."""
        credit = self._output.credit
        if credit - self._credited >= WINDOW // 2:
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
        metrics.speculation.count(output.transcript.header.model, len(kept.draft), kept.accepted)
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
