"""Continuous batching: work of all sessions -> a plan -> the one model thread -> results to whoever awaits them.

The loop plans, the thread runs. Work that comes while a pass runs forms the next one; nothing waits on purpose.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from specdec.draft import Verdict
from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from verifier_service.costs import PassCost
from verifier_service.metrics import Metrics
from verifier_service.plan import Prefill, Row, Work, plan
from verifier_service.verifier import Result, TargetEngine, verify_batch

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what it took."""

    verdict: Verdict
    queue: float
    """Seconds in the queue."""
    verify: float
    """Seconds of the pass."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """Work, and who awaits it."""

    work: Work
    done: "asyncio.Future[tuple[Result, float, float]]"
    queued: float


@dataclass(frozen=True, slots=True, eq=False)
class _Admission:
    """A session that waits for room."""

    session: str
    capacity: int
    done: "asyncio.Future[None]"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the thread does next."""

    leaving: Sequence[str]
    entering: Sequence[_Admission]
    batch: Sequence[_Ticket]


@dataclass(frozen=True, slots=True)
class _Done:
    """What the thread did."""

    admitted: int
    """How many of those entering, from the first on."""
    results: Sequence[Result]
    started: float
    seconds: float
    kv_usage: float


class Scheduler:
    """The queue in front of one engine. All methods belong to the event loop."""

    def __init__(
        self,
        engine: TargetEngine,
        thread: Executor,
        chunk_tokens: int,
        max_waiting: int,
        costs: PassCost,
        metrics: Metrics,
    ) -> None:
        """`thread` has one worker, which owns `engine`."""
        self._engine = engine
        self._thread = thread
        self._chunk_tokens = chunk_tokens
        self._max_waiting = max_waiting
        self._costs = costs
        self._metrics = metrics
        self._queue: list[_Ticket] = []
        self._entering: deque[_Admission] = deque()
        self._leaving: list[str] = []
        self._wake = asyncio.Event()
        # Belongs to the thread.
        self._seated: set[str] = set()

    @asynccontextmanager
    async def seat(self, session: str, capacity: int) -> AsyncIterator[None]:
        """Hold KV for `capacity` tokens under the name `session`; first come, first served.

        Raises:
            ContextLengthExceeded: it would not fit an empty engine.
            QueueFull: too many wait already.
        """
        if not self._engine.can_ever_admit(capacity):
            raise ContextLengthExceeded(f"{capacity} tokens are more than this server has memory for", "max_tokens")
        if len(self._entering) >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} generations are waiting already")
        admission = _Admission(session, capacity, asyncio.get_running_loop().create_future())
        arrived = time.perf_counter()
        self._entering.append(admission)
        self._wake.set()
        try:
            await admission.done
            self._metrics.admission_seconds.observe(time.perf_counter() - arrived)
            with self._metrics.running.track_inprogress():
                yield
        finally:
            self._leaving.append(session)
            self._wake.set()

    async def prefill(self, session: str, tokens: tuple[int, ...]) -> None:
        """Compute the KV of a piece of prompt.

        Raises:
            InternalError: the pass failed.
        """
        await self._submit(Prefill(session, tokens))

    async def verify(self, row: Row) -> Outcome:
        """Judge a row in the next pass.

        Raises:
            InternalError: the pass failed.
        """
        verdict, queue, seconds = await self._submit(row)
        if not isinstance(verdict, Verdict):
            raise InternalError("a row came back without a verdict")
        return Outcome(verdict, queue, seconds)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            if not self._queue:
                await self._wake.wait()
            self._wake.clear()
            await self._turn()

    async def _submit(self, work: Work) -> tuple[Result, float, float]:
        ticket = _Ticket(work, asyncio.get_running_loop().create_future(), time.perf_counter())
        self._queue.append(ticket)
        self._wake.set()
        return await ticket.done

    async def _turn(self) -> None:
        self._entering = deque(admission for admission in self._entering if not admission.done.cancelled())
        live = [ticket for ticket in self._queue if not ticket.done.cancelled()]
        now, self._queue = plan(live, self._chunk_tokens)
        turn = _Turn(self._leaving, tuple(self._entering), now)
        self._leaving = []
        self._metrics.waiting.set(len(self._entering))
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._thread, self._execute, turn)
        except Exception as error:  # noqa: BLE001 - out of memory for a seat, say: the other sessions live on
            self._fail(turn, error)
        else:
            self._deliver(turn, done)

    def _execute(self, turn: _Turn) -> _Done:
        """On the thread: seats first, then the pass."""
        for session in self._seated.intersection(turn.leaving):
            self._engine.release(session)
            self._seated.remove(session)
        admitted = 0
        for admission in turn.entering:
            if not self._engine.admit(admission.session, admission.capacity):
                break
            self._seated.add(admission.session)
            admitted += 1
        started = time.perf_counter()
        results = verify_batch(self._engine, [ticket.work for ticket in turn.batch]) if turn.batch else []
        return _Done(admitted, results, started, time.perf_counter() - started, self._engine.kv_usage)

    def _deliver(self, turn: _Turn, done: _Done) -> None:
        self._metrics.kv_usage.set(done.kv_usage)
        for admission in turn.entering[: done.admitted]:
            self._entering.remove(admission)
            if not admission.done.cancelled():
                admission.done.set_result(None)
        for ticket, result in zip(turn.batch, done.results, strict=True):
            if ticket.done.cancelled():
                continue
            if isinstance(result, InternalError):
                ticket.done.set_exception(result)
            else:
                ticket.done.set_result((result, done.started - ticket.queued, done.seconds))
        self._measure([ticket.work for ticket in turn.batch], done.seconds)

    def _fail(self, turn: _Turn, error: Exception) -> None:
        _log.error("turn_failed", exc_info=error)
        for admission in turn.entering:
            self._entering.remove(admission)
        entering: list[asyncio.Future[Any]] = [admission.done for admission in turn.entering]
        for done in [*entering, *(ticket.done for ticket in turn.batch)]:
            if not done.cancelled():
                done.set_exception(InternalError("the model failed"))

    def _measure(self, batch: Sequence[Work], seconds: float) -> None:
        if not batch:
            return
        rows = [work for work in batch if isinstance(work, Row)]
        self._metrics.batch_rows.observe(len(batch))
        self._metrics.pass_seconds.observe(seconds)
        if rows and not any(work.prompt_tokens for work in batch):
            tokens = sum(1 + len(row.draft.tokens) for row in rows)
            self._costs.observe(len(rows), tokens, seconds)
