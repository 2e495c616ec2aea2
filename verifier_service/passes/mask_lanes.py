"""Computation of grammar masks in parallel with passes. A row joins a pass after its masks are ready.

Rows with cheap masks have a thread of their own, and a pass waits a few milliseconds for them. All other rows share a
second thread, cheapest first, and no pass waits for them. So an expensive grammar delays only its own sequence and
others with expensive grammars.
"""

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import structlog

from specdec.grammar.state import TokenMasks
from verifier_service.backends.batch_plan import Row

PATIENCE = 0.005
"""Longest delay of a pass for masks expected to be cheap, in seconds."""
_AGING = 1000.0
"""Seconds of waiting that offset one second of expected computation in the queue order."""

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Job:
    """A row whose masks are pending."""

    row: Row
    grammar: TokenMasks
    cheap: bool
    done: bool = False


@dataclass(slots=True)
class _Lane:
    """Priority queue of the jobs of one thread."""

    thread: ThreadPoolExecutor
    jobs: list[tuple[float, int, _Job]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def push(self, key: float, number: int, job: _Job) -> None:
        with self.lock:
            heapq.heappush(self.jobs, (key, number, job))

    def pop(self) -> _Job:
        with self.lock:
            return heapq.heappop(self.jobs)[2]


class MaskLanes:
    """Rows that wait for their masks. All methods and `changed` run on the event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Create the lanes; `changed` is called when masks are ready."""
        self._changed = changed
        self._numbers = count()
        self._jobs: dict[str, _Job] = {}
        """Last job of each sequence, by KV name. A sequence has at most one row."""
        self._cheap = _Lane(ThreadPoolExecutor(1, "cheap-masks"))
        self._expensive = _Lane(ThreadPoolExecutor(1, "masks"))

    def begin(self, row: Row) -> bool:
        """Start to compute the masks of a row that has a grammar and gets a verdict; return whether it waits."""
        if row.grammar is None or row.goal < len(row.tokens):
            return False
        job = self._jobs[row.kv_name] = _Job(row, row.grammar, not row.grammar.expensive)
        lane = self._cheap if job.cheap else self._expensive
        lane.push(time.perf_counter() + _AGING * row.grammar.seconds, next(self._numbers), job)
        lane.thread.submit(self._work, lane, asyncio.get_running_loop())
        return True

    def waits(self, row: Row) -> bool:
        """Whether the masks of a row are pending."""
        job = self._jobs.get(row.kv_name)
        return job is not None and not job.done

    @property
    def soon(self) -> bool:
        """Whether masks expected to be cheap are pending. A pass may wait briefly for them."""
        return any(job.cheap and not job.done for job in self._jobs.values())

    def forget(self, kv_name: str) -> None:
        """Drop the job of an ended sequence."""
        if (job := self._jobs.pop(kv_name, None)) is not None:
            job.done = True

    def close(self) -> None:
        """Stop the threads after their current jobs."""
        for lane in (self._cheap, self._expensive):
            lane.thread.shutdown(wait=False, cancel_futures=True)

    def _work(self, lane: _Lane, loop: asyncio.AbstractEventLoop) -> None:
        """Compute the masks of the next job, on the thread of a lane."""
        job = lane.pop()
        if job.done:
            return
        row = job.row
        try:
            job.grammar.masks(row.tokens[row.call.prompt_len :], row.draft.tokens)
        except Exception as error:  # noqa: BLE001 - only the verdict on this row fails
            _log.error("grammar_failed", session=row.kv_name, exc_info=error)
        job.done = True
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._changed)
