"""One loop per verifier: receives the rounds of its passes, commits them in one store call, and publishes them.

A round is committed before it is shown. Rounds that arrive during a commit join the next one. Rounds of a generation
whose readers all wait for its end are held for a moment and committed together.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import structlog

from gateway.metrics import GatewayMetrics
from gateway.store.sessions import SessionStore
from gateway.store.values import RoundCommit
from gateway.tasks import cancel_and_wait
from gateway.verifiers.client import VerifierClient
from gateway.verifiers.round_streams import CallStream, PassStream, RoundStream, joined_rounds
from specdec.errors import Draining, InternalError, SpecdecError
from specdec.serving.telemetry.request_ids import call_headers
from specdec.wire.generation import GenerationCall, Round, VerifierInfo
from specdec.wire.passes import Opening

_RENEWED = 1800.0
"""Age in seconds at which new generations use a new stream; a server with a new certificate ends old streams."""

_log = structlog.get_logger()


class Receiver(Protocol):
    """Owner of a generation. The loop calls its methods, which return at once."""

    def take(self, verified: Round) -> RoundCommit | None:
        """Return the commit of the next round; None if there is nothing to commit, as after the end.

        Raises:
            SpecdecError: the round is invalid; the loop then calls `lost` with the error.
        """

    def committed(self, answer: bool | SpecdecError) -> None:
        """Handle the store's answer to the oldest pending commit: whether the turn was cancelled, or an error."""

    def lost(self, error: SpecdecError) -> None:
        """Handle the end of the generation at this verifier."""


class Slot:
    """Generation in a pass loop."""

    def __init__(self, number: int, stream: RoundStream, forget: Callable[[int], bool]) -> None:
        self._number = number
        self._stream = stream
        self._forget = forget

    def credit(self, length: int) -> None:
        """Allow the sequence to grow to `length` tokens."""
        self._stream.credit(self._number, length)

    def hold(self, patient: bool) -> None:
        """Let rounds wait for one another if the receiver is patient."""
        self._stream.arrivals.hold(self._number, patient)

    def close(self, *, finished: bool = False) -> None:
        """Stop receiving; cancel the generation at the verifier unless it `finished` there."""
        if self._forget(self._number) and not finished:
            self._stream.cancel(self._number)


class PassLoop:
    """Generations of this process at one verifier, over one stream."""

    def __init__(self, stream: RoundStream, sessions: SessionStore, metrics: GatewayMetrics) -> None:
        """Serve `stream` until it is lost or closed."""
        self._stream = stream
        self._sessions = sessions
        self._metrics = metrics
        self._receivers: dict[int, Receiver] = {}
        self._numbers = count()
        self._retired = False
        self.task = asyncio.create_task(self._run())

    def retire(self) -> None:
        """End after the last generation."""
        self._retired = True
        self._end_if_idle()

    def open(self, call: GenerationCall, receiver: Receiver, credit: int, timeout: float) -> Slot:
        """Start a generation with an initial credit of `credit` tokens and a limit of `timeout` seconds."""
        number = next(self._numbers)
        self._receivers[number] = receiver
        self._stream.open(Opening(number, call, credit, timeout, call_headers()))
        return Slot(number, self._stream, self._forget)

    async def close(self) -> None:
        """End all generations."""
        await cancel_and_wait(self.task)

    def _forget(self, slot: int) -> bool:
        """Remove the receiver of a slot; return False if it has none."""
        self._stream.arrivals.drop(slot)
        known = self._receivers.pop(slot, None) is not None
        self._end_if_idle()
        return known

    def _end_if_idle(self) -> None:
        if self._retired and not self._receivers:
            self.task.cancel()

    async def _run(self) -> None:
        lost: SpecdecError = Draining("the stream to the verifier was closed")
        try:
            while True:
                rounds, ended = await self._stream.arrivals.take()
                await self._commit(rounds)
                for slot, error in ended.items():
                    self._lose(slot, error)
        except SpecdecError as error:
            lost = error
        finally:
            for slot in list(self._receivers):
                self._lose(slot, lost)
            await self._stream.close()

    async def _commit(self, rounds: Mapping[int, Sequence[Round]]) -> None:
        """Commit rounds by slot, and pass the answers to their receivers."""
        due = [
            (receiver, commit)
            for slot, own in rounds.items()
            for verified in joined_rounds(own)
            if (receiver := self._receivers.get(slot)) and (commit := self._taken(receiver, verified))
        ]
        if not due:
            return
        answers: Sequence[bool | SpecdecError]
        try:
            with self._metrics.store_seconds.labels("commit").time():
                answers = await self._sessions.commit([commit for _, commit in due])
        except SpecdecError as error:
            answers = [error] * len(due)
        for (receiver, _), answer in zip(due, answers, strict=True):
            receiver.committed(answer)

    def _taken(self, receiver: Receiver, verified: Round) -> RoundCommit | None:
        try:
            return receiver.take(verified)
        except SpecdecError as error:
            receiver.lost(error)
        except Exception as error:  # noqa: BLE001 - the other generations go on
            _log.error("round_not_taken", exc_info=error)
            receiver.lost(InternalError("a round cannot be taken"))
        return None

    def _lose(self, slot: int, error: SpecdecError) -> None:
        receiver = self._receivers.pop(slot, None)
        if receiver is not None:
            receiver.lost(error)
        self._end_if_idle()


class PassLoops:
    """Pass loops of this process: one per verifier, and replaced ones that still have generations."""

    def __init__(self, sessions: SessionStore, metrics: GatewayMetrics) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._current: dict[VerifierClient, _Current] = {}
        self._all: set[PassLoop] = set()

    def of(self, verifier: VerifierClient, info: VerifierInfo) -> PassLoop:
        """Return the loop for new generations at a verifier."""
        known = self._current.get(verifier)
        if known is not None:
            if not known.loop.task.done() and known.is_fresh(verifier):
                return known.loop
            known.loop.retire()
        stream = PassStream(verifier) if info.passes else CallStream(verifier)
        loop = PassLoop(stream, self._sessions, self._metrics)
        self._current[verifier] = _Current(loop, verifier.dialled, time.monotonic())
        self._all.add(loop)
        loop.task.add_done_callback(lambda _: self._ended(verifier, loop))
        return loop

    async def close(self) -> None:
        """End all generations."""
        await asyncio.gather(*(loop.close() for loop in list(self._all)))

    def _ended(self, verifier: VerifierClient, loop: PassLoop) -> None:
        self._all.discard(loop)
        if (known := self._current.get(verifier)) is not None and known.loop is loop:
            del self._current[verifier]


@dataclass(frozen=True, slots=True)
class _Current:
    """Current loop of a verifier, used by new generations."""

    loop: PassLoop
    dialled: int
    """Number of the stream's channel."""
    began: float
    """Start time, by `time.monotonic`."""

    def is_fresh(self, verifier: VerifierClient) -> bool:
        return self.dialled == verifier.dialled and time.monotonic() - self.began < _RENEWED
