"""One turn of the model's thread: who leaves, who comes in, what runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from specdec.engine.kv_pool import KvMemory
from specdec.errors import InternalError
from verifier_service.batching.batch_plan import Budget, KvRequest, ScheduledChunk, Work, plan
from verifier_service.batching.kv_admission import KvAdmission
from verifier_service.batching.target_pass import Result, TargetEngine, verify_batch

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Work that waits, and the claim of its session."""

    claim: KvRequest
    work: Work


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of what came in was computed already; tokens."""

    asked: int = 0
    found: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did."""

    results: dict[Request, Result]
    """Of the requests that are done."""
    shares: Sequence[ScheduledChunk]
    """What ran."""
    started: float
    seconds: float
    """Of the pass."""
    seated: int
    """Sessions with KV."""
    preempted: int
    """Sessions that lost it in this turn."""
    reuse: Reuse
    memory: KvMemory


class ModelThread:
    """Owns the engine; its methods belong to one thread."""

    def __init__(self, engine: TargetEngine, budget: Budget) -> None:
        self._engine = engine
        self._budget = budget
        self._seats = KvAdmission(engine)

    def turn(self, leaving: Sequence[str], requests: Sequence[Request]) -> Turn:
        """Let sessions go, seat those that wait, and run one pass.

        Args:
            leaving: sessions that have ended.
            requests: in order of rank, one for a session at most.
        """
        for session in leaving:
            self._seats.leave(session)
        preempted = self._seats.preempted
        results: dict[Request, Result] = {}
        reuse = self._seat(requests, results)
        ready = self._ready(requests, results)
        shares = self._shares(list(ready))
        started = time.perf_counter()
        for share, result in zip(shares, verify_batch(self._engine, shares) if shares else [], strict=True):
            if share.complete or isinstance(result, InternalError):
                results[ready[share.work]] = result
        seconds = time.perf_counter() - started
        lost = self._seats.preempted - preempted
        return Turn(results, shares, started, seconds, len(self._seats), lost, reuse, self._engine.memory)

    def _seat(self, requests: Sequence[Request], results: dict[Request, Result]) -> Reuse:
        """Give KV to those that have none, in their order, until one does not fit."""
        for request in requests:
            self._seats.use(request.claim.session)
        asked = found = 0
        for request in requests:
            if request.claim.session in self._seats:
                continue
            try:
                if not self._seats.enter(request.claim, request.work.tokens):
                    break
            except Exception as error:  # noqa: BLE001 - out of memory, say: the other sessions live on
                _log.error("seat_failed", session=request.claim.session, exc_info=error)
                results[request] = InternalError("there is no memory for this sequence")
            else:
                asked += len(request.work.tokens)
                found += self._engine.length(request.claim.session)
        return Reuse(asked, found)

    def _ready(self, requests: Sequence[Request], results: dict[Request, Result]) -> dict[Work, Request]:
        """The work that can run; what is there already is done with that."""
        ready: dict[Work, Request] = {}
        for request in requests:
            if request.claim.session not in self._seats:
                continue
            if self._engine.length(request.claim.session) >= request.work.goal:
                results[request] = None
            else:
                ready[request.work] = request
        return ready

    def _shares(self, ready: Sequence[Work]) -> list[ScheduledChunk]:
        """The next pass, without the sessions that gave up their KV for it."""
        shares = plan([(work, self._engine.length(work.session)) for work in ready], self._budget)
        for share in shares:
            if share.work.session in self._seats:
                self._seats.grow(share.work.session, share.length)
        return [share for share in shares if share.work.session in self._seats]
