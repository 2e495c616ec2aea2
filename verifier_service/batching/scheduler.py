"""Continuous batching: rows of all sessions -> steps of the one model thread -> outcomes to the sessions.

Rows that come while a pass runs form the next one. A pass waits for the rows that are announced, or where the sessions
that draft are in two groups for half of them. Plain passes of the same rows follow one another without the loop.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial

import structlog

from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from verifier_service.batching.announced import Announced
from verifier_service.batching.batch_plan import Gathers, Row, is_turn, turn
from verifier_service.batching.kv_admission import IDLE_SECONDS
from verifier_service.batching.model_step import BatchModel, ModelStep, TargetLost
from verifier_service.batching.pass_sample import PassHistory
from verifier_service.batching.run_ahead import Result, Unasked, joins
from verifier_service.batching.speculation import BatchSpeculation
from verifier_service.batching.step_metrics import publish
from verifier_service.batching.waiting import WaitingRows
from verifier_service.config import VerifierSettings
from verifier_service.metrics import VerifierMetrics

_HAND_OVER = 5e-5
"""Seconds for which the event loop stops when a pass is ordered, so that the model's thread begins at once: the loop
has the rounds of the last pass to write, and would keep the interpreter for as long as that takes, up to 5 ms."""

_log = structlog.get_logger()


class Scheduler:
    """The queue in front of one target. All methods belong to the event loop."""

    def __init__(
        self,
        model: BatchModel,
        thread: Executor,
        settings: VerifierSettings,
        speculation: BatchSpeculation,
        metrics: VerifierMetrics,
    ) -> None:
        """Make a scheduler that `run` serves.

        Args:
            model: owned by the one worker of `thread`.
            settings: how many sequences may wait for their first KV.
        """
        self._model = model
        self.drafts_first = model.drafts_first
        """Whether the pass that reads the end of a prompt judges a draft as well."""
        self._thread = thread
        self._max_waiting = settings.max_waiting
        self._speculation = speculation
        self._metrics = metrics
        self._sequences: set[str] = set()
        """KV names of the sequences inside `admitted`, with KV or without."""
        self._entering: set[str] = set()
        """Those of them that have not had KV yet."""
        self._found: dict[str, int] = {}
        """How many tokens of each of these had KV when it was let in."""
        self._waiting = WaitingRows()
        self._ended: list[str] = []
        """KV names of sequences that have ended, until the thread releases them."""
        self._ready = 0.0
        """When the first row of the next pass came, by `time.perf_counter`; 0 before it came."""
        self._pass_seconds = 0.0
        """Of the last pass."""
        self._passes = PassHistory()
        self._wake = asyncio.Event()
        self._announced = Announced(self._changed)
        self._unasked = Unasked(model.told)
        self._under_way: Sequence[Row] = ()
        """The rows that the thread has now; empty while it does nothing."""

    @asynccontextmanager
    async def admitted(self, row: Row) -> AsyncIterator[int]:
        """Hold the right to KV for the sequence of a row of goal 0, once there is room for its tokens; by rank.

        The context's value is how many of the tokens had KV already.

        The KV may be taken away between the sequence's rows; it is computed again for the next one, which costs time
        and changes no token.

        Raises:
            ContextLengthExceeded: the row's limit would not fit an empty engine.
            QueueFull: too many sequences wait already.
        """
        if not self._model.can_ever_admit(row.limit):
            raise ContextLengthExceeded(f"{row.limit} tokens are more than this server has memory for", "max_tokens")
        if len(self._entering) >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} generations are waiting already")
        arrived = time.perf_counter()
        self._sequences.add(row.kv_name)
        self._entering.add(row.kv_name)
        try:
            await self._submit(row)
            self._entering.remove(row.kv_name)
            self._metrics.admission_seconds.observe(time.perf_counter() - arrived)
            yield self._found.pop(row.kv_name, 0)
        finally:
            self._found.pop(row.kv_name, None)
            self._entering.discard(row.kv_name)
            self._sequences.remove(row.kv_name)
            self._unasked.drop(row.kv_name)
            self._end(row.kv_name)

    def expected(self, gathers: Gathers, hurry: Callable[[], None]) -> AbstractContextManager[None]:
        """Announce a row that comes at the end of the context; a pass that computes a prompt does not wait for it.

        Args:
            hurry: lets the context end soon; called when a pass begins that does not wait for the row.
        """
        return self._announced.row(gathers, hurry)

    async def prefill(self, row: Row) -> None:
        """Compute the KV of the row's first `goal` tokens; raises InternalError when the pass failed."""
        await self._submit(row)

    def verify(self, row: Row) -> Result:
        """Judge the row's draft as soon as the tokens before it have KV; an InternalError where the pass failed."""
        unasked = self._unasked.take(row)
        return self._submit(row) if unasked is None else unasked

    def runs_ahead_of(self, kv_name: str) -> bool:
        """Whether the next round of a sequence, a plain one, has begun before its session asks for it."""
        return kv_name in self._unasked

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            TargetLost: the target cannot go on.
        """
        busy = False
        try:
            while True:
                if not busy:  # while rows wait for room, other sequences may become idle
                    await self._wait_for_change(IDLE_SECONDS if self._waiting else math.inf)
                self._wake.clear()
                self._model.told.go()
                if (seconds := self._held_back()) > 0.0:
                    await self._wait_for_change(seconds)
                    continue
                await self._announced.hurry()
                busy = await self._step()
                # A session that got a verdict submits its next row before a pass over what is left begins without it.
                await asyncio.sleep(0)
        finally:
            self._model.told.stop()

    def _changed(self, *, stops: bool = True) -> None:
        self._wake.set()
        if stops:
            self._model.told.stop()

    async def _wait_for_change(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._wake.wait()

    def _held_back(self) -> float:
        """Seconds for which the next pass waits for announced rows: for all, or half where there are two groups."""
        always, briefly = self._announced[Gathers.ALWAYS], self._announced[Gathers.BRIEFLY]
        if not always + briefly or self._waiting.prompts:
            return 0.0
        ready = [row for row in self._waiting if row.goal > 0]
        if self._speculation.groups > 1 and is_turn(ready, self.running):
            return 0.0
        if always:
            return math.inf
        if self._announced[Gathers.NOT] or not ready or not all(row.draft.tokens for row in ready):
            return 0.0
        return self._ready + self._pass_seconds * briefly / len(ready) - time.perf_counter()

    @property
    def running(self) -> int:
        """Sequences that have been let in."""
        return len(self._sequences) - len(self._entering)

    def _submit(self, row: Row) -> Result:
        result: Result = asyncio.get_running_loop().create_future()
        self._waiting[row] = result
        if row.goal and not self._ready:
            self._ready = time.perf_counter()
        if joining := bool(self._under_way) and joins(row):
            self._model.join((), [row])
        self._changed(stops=not joining)
        return result

    def _end(self, kv_name: str) -> None:
        if self._under_way:
            self._model.join([kv_name], ())
        else:
            self._ended.append(kv_name)
        self._changed(stops=not self._under_way)

    async def _step(self) -> bool:
        """Let the thread do what it can; False when there was nothing it could do."""
        self._waiting.drop_cancelled()
        groups, waited, self._ready = self._speculation.groups, self._announced.waited(), 0.0
        left_out = self._announced[Gathers.ALWAYS] > 0
        chosen = list(self._waiting) if groups == 1 else turn(list(self._waiting), self.running)
        rows = sorted(chosen, key=lambda row: row.rank)
        ended, self._ended = self._ended, []
        self._under_way, loop = rows, asyncio.get_running_loop()
        passed = partial(loop.call_soon_threadsafe, self._passed)  # type: ignore[arg-type]
        try:
            running = loop.run_in_executor(self._thread, self._model.run, ended, rows, passed)
            time.sleep(_HAND_OVER)  # noqa: ASYNC251 - to stop is what it is for
            step = await running
        except Exception as error:
            _log.error("step_failed", exc_info=error)
            self._waiting.deliver({row: InternalError("the model failed") for row in self._under_way})
            if isinstance(error, TargetLost):
                raise
            return False
        finally:
            self._under_way = ()
        self._take(step, groups, waited, left_out=left_out)
        return bool(step.chunks or step.results)

    def _passed(self, step: ModelStep, following: Sequence[Row]) -> None:
        """Take a step behind which a pass over `following` has begun already."""
        self._waiting.drop_cancelled()
        for row in (each for each in following if each not in self._waiting):
            self._waiting[row] = asyncio.get_running_loop().create_future()
            self._unasked.add(row, self._waiting[row])
            if row.kv_name not in self._sequences:
                self._unasked.drop(row.kv_name)
        self._under_way = following
        self._take(step, 1, 0.0, left_out=False)

    def _take(self, step: ModelStep, groups: int, waited: float, *, left_out: bool) -> None:
        self._found |= {name: count for name, count in step.found.items() if name in self._entering}
        self._waiting.deliver(step.results)
        publish(step, len(self._sequences), self._metrics)
        if step.chunks:
            self._pass_seconds = step.seconds
            left = self._waiting.prompts
            self._speculation.passed(self._passes.add(step, groups, waited, left, waits=left_out))
