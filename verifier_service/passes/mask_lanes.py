"""The masks of grammars, computed beside the passes: a row joins a pass once its own are known.

Rows whose masks are cheap have a thread of their own, and a pass waits for them for a few milliseconds. All others
share a second thread, cheapest first, and no pass waits for them. So an expensive grammar slows the
sequence that follows it, and nobody else.
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
"""Seconds for which a pass waits for masks that are cheap as far as is known."""
_AGING = 1000.0
"""Seconds of waiting that are worth one second of expected computation."""

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Job:
    """A row whose masks are not known yet."""

    row: Row
    grammar: TokenMasks
    cheap: bool
    done: bool = False


@dataclass(slots=True)
class _Lane:
    """Jobs of one thread, the next one first."""

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
    """Which rows wait for their masks. All methods belong to the event loop; `changed` is called on it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the masks of rows have become known."""
        self._changed = changed
        self._numbers = count()
        self._jobs: dict[str, _Job] = {}
        """The last of each sequence, by KV name; it has one row at most."""
        self._cheap = _Lane(ThreadPoolExecutor(1, "cheap-masks"))
        self._expensive = _Lane(ThreadPoolExecutor(1, "masks"))

    def begin(self, row: Row) -> bool:
        """Compute the masks of a row, where it has a grammar and gets a verdict; whether it waits for them."""
        if row.grammar is None or row.goal < len(row.tokens):
            return False
        job = self._jobs[row.kv_name] = _Job(row, row.grammar, not row.grammar.expensive)
        lane = self._cheap if job.cheap else self._expensive
        lane.push(time.perf_counter() + _AGING * row.grammar.seconds, next(self._numbers), job)
        lane.thread.submit(self._work, lane, asyncio.get_running_loop())
        return True

    def waits(self, row: Row) -> bool:
        """Whether the masks of a row are not known yet."""
        job = self._jobs.get(row.kv_name)
        return job is not None and not job.done

    @property
    def soon(self) -> bool:
        """Whether masks are not known yet that are cheap as far as is known; a pass may wait for them for a moment."""
        return any(job.cheap and not job.done for job in self._jobs.values())

    def forget(self, kv_name: str) -> None:
        """Note that a sequence has ended."""
        if (job := self._jobs.pop(kv_name, None)) is not None:
            job.done = True

    def close(self) -> None:
        """Begin no more masks."""
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
        except Exception as error:  # noqa: BLE001 - the judgement of the row fails, and of no other
            _log.error("grammar_failed", session=row.kv_name, exc_info=error)
        job.done = True
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._changed)
