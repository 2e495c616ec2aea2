"""Continuous batching: work of all sessions -> turns of the one model thread -> results to whoever awaits them.

The loop sorts, the thread runs. Work that comes while a pass runs forms the next one; nothing waits on purpose.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from specdec.rules.draft import Verdict
from verifier_service.batching.batch_plan import Budget, KvRequest, Prefill, Row, ScheduledChunk, Work
from verifier_service.batching.costs import PassCost
from verifier_service.batching.kv_admission import IDLE_SECONDS
from verifier_service.batching.model_thread import ModelThread, Request, Turn
from verifier_service.batching.target_pass import Result, TargetEngine
from verifier_service.metrics import Metrics

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what it took."""

    verdict: Verdict
    queue: float
    """Seconds until its pass began, those of the passes that computed the tokens before it included."""
    verify: float
    """Seconds of the pass."""
    offered: int
    """How many of the drafts there was room for in the pass; a verdict on fewer found fault with them."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of a request."""

    result: Result
    started: float
    seconds: float
    """Of the pass."""
    offered: int


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """A request, and who awaits it."""

    request: Request
    done: "asyncio.Future[_Done]"


class Scheduler:
    """The queue in front of one engine. All methods belong to the event loop."""

    def __init__(
        self,
        engine: TargetEngine,
        thread: Executor,
        budget: Budget,
        max_waiting: int,
        costs: PassCost,
        metrics: Metrics,
    ) -> None:
        """`thread` has one worker, which owns `engine`."""
        self._engine = engine
        self._model = ModelThread(engine, budget)
        self._thread = thread
        self._max_waiting = max_waiting
        self._costs = costs
        self._metrics = metrics
        self._claims: dict[str, KvRequest] = {}
        self._outside: set[str] = set()
        """Sessions that have not been let in yet."""
        self._queue: list[_Ticket] = []
        self._leaving: list[str] = []
        self._wake = asyncio.Event()

    @asynccontextmanager
    async def seat(self, claim: KvRequest, tokens: Sequence[int]) -> AsyncIterator[None]:
        """Hold a right to KV, once there is room for `tokens`; by rank.

        It may be taken away while the session does not compute, and given back when it does: nobody but the clock can
        tell.

        Raises:
            ContextLengthExceeded: it would not fit an empty engine.
            QueueFull: too many wait already.
        """
        session = claim.session
        if not self._engine.can_ever_admit(claim.limit):
            raise ContextLengthExceeded(f"{claim.limit} tokens are more than this server has memory for", "max_tokens")
        if len(self._outside) >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} generations are waiting already")
        arrived = time.perf_counter()
        self._claims[session] = claim
        self._outside.add(session)
        try:
            await self.prefill(session, tokens, 0)
            self._outside.remove(session)
            self._metrics.admission_seconds.observe(time.perf_counter() - arrived)
            yield
        finally:
            self._outside.discard(session)
            del self._claims[session]
            self._leaving.append(session)
            self._wake.set()

    async def prefill(self, session: str, tokens: Sequence[int], goal: int) -> None:
        """Have the KV of the first `goal` tokens.

        Raises:
            InternalError: the pass failed.
        """
        await self._submit(Prefill(session, tokens, goal))

    async def verify(self, row: Row) -> Outcome:
        """Judge a row as soon as the tokens before it have KV.

        Raises:
            InternalError: the pass failed.
        """
        asked = time.perf_counter()
        done = await self._submit(row)
        if not isinstance(done.result, Verdict):
            raise InternalError("a row came back without a verdict")
        return Outcome(done.result, done.started - asked, done.seconds, done.offered)

    async def run(self) -> None:
        """Serve until cancelled."""
        moving = False
        while True:
            if not moving:
                await self._news()
            self._wake.clear()
            moving = await self._turn()
            # Whoever has got a verdict asks for the next one before work that is left begins the next pass without it.
            await asyncio.sleep(0)

    async def _news(self) -> None:
        """Wait for something to do; with sessions that wait for room, look again when others may have become idle."""
        try:
            async with asyncio.timeout(IDLE_SECONDS if self._queue else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _submit(self, work: Work) -> _Done:
        request = Request(self._claims[work.session], work)
        ticket = _Ticket(request, asyncio.get_running_loop().create_future())
        self._queue.append(ticket)
        self._wake.set()
        return await ticket.done

    async def _turn(self) -> bool:
        """Let the thread do what it can; False when there was nothing it could do."""
        self._queue = [ticket for ticket in self._queue if not ticket.done.cancelled()]
        self._queue.sort(key=lambda ticket: ticket.request.claim.rank)
        # Copies: more of both may come while the thread works.
        tickets, leaving = tuple(self._queue), tuple(self._leaving)
        self._leaving.clear()
        requests = [ticket.request for ticket in tickets]
        try:
            turn = await asyncio.get_running_loop().run_in_executor(self._thread, self._model.turn, leaving, requests)
        except Exception as error:  # noqa: BLE001 - the sessions of other turns live on
            self._fail(tickets, error)
            return False
        self._deliver(tickets, turn)
        self._measure(turn)
        return bool(turn.shares or turn.results)

    def _deliver(self, tickets: Sequence[_Ticket], turn: Turn) -> None:
        offered = {share.work: share.drafts for share in turn.shares}
        for ticket in tickets:
            if ticket.request not in turn.results:
                continue
            self._queue.remove(ticket)
            result = turn.results[ticket.request]
            if ticket.done.cancelled():
                continue
            if isinstance(result, InternalError):
                ticket.done.set_exception(result)
            else:
                drafts = offered.get(ticket.request.work, 0)
                ticket.done.set_result(_Done(result, turn.started, turn.seconds, drafts))

    def _fail(self, tickets: Sequence[_Ticket], error: Exception) -> None:
        _log.error("turn_failed", exc_info=error)
        for ticket in tickets:
            self._queue.remove(ticket)
            if not ticket.done.cancelled():
                ticket.done.set_exception(InternalError("the model failed"))

    def _measure(self, turn: Turn) -> None:
        self._metrics.see(turn, waiting=max(len(self._claims) - turn.seated, 0))
        if not turn.shares:
            return
        tokens = sum(share.length - share.start for share in turn.shares)
        if all(_decodes(share) for share in turn.shares):
            self._costs.observe(len(turn.shares), tokens, turn.seconds)
        else:
            self._costs.observe_prompt(tokens, turn.seconds)


def _decodes(share: ScheduledChunk) -> bool:
    """Whether it is a row without prompt tokens."""
    return isinstance(share.work, Row) and share.complete and share.count == 1
