"""Continuous batching: rows of all sessions -> steps of the one model thread -> outcomes to the sessions.

The loop sorts the rows, the thread runs them. Rows that come while a pass runs form the next one. A pass waits for the
rows that are announced, or where the sessions that draft are in two groups for half of them.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, asynccontextmanager, suppress

import structlog

from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from verifier_service.batching.announced import Announced
from verifier_service.batching.batch_plan import Gathers, Outcome, Row, is_turn, turn
from verifier_service.batching.kv_admission import IDLE_SECONDS
from verifier_service.batching.model_step import BatchModel, ModelStep, TargetLost
from verifier_service.batching.pass_sample import PassSample
from verifier_service.batching.speculation import BatchSpeculation
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
        self._waiting: dict[Row, asyncio.Future[Outcome | None]] = {}
        """The result that each row waits for; None for a prefill."""
        self._ended: list[str] = []
        """KV names of sequences that have ended, until the thread releases them."""
        self._ready = 0.0
        """When the first row of the next pass came, by `time.perf_counter`; 0 before it came."""
        self._pass_seconds = 0.0
        """Of the last pass."""
        self._names_before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """KV names of the last two passes, the last one last."""
        self._wake = asyncio.Event()
        self._announced = Announced(self._wake.set)

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
            self._ended.append(row.kv_name)
            self._wake.set()

    def expected(self, gathers: Gathers, hurry: Callable[[], None]) -> AbstractContextManager[None]:
        """Announce a row that comes at the end of the context; a pass that computes a prompt does not wait for it.

        Args:
            hurry: lets the context end soon; called when a pass begins that does not wait for the row.
        """
        return self._announced.row(gathers, hurry)

    async def prefill(self, row: Row) -> None:
        """Compute the KV of the row's first `goal` tokens; raises InternalError when the pass failed."""
        await self._submit(row)

    async def verify(self, row: Row) -> Outcome:
        """Judge the row's draft as soon as the tokens before it have KV; raises InternalError when the pass failed."""
        outcome = await self._submit(row)
        if outcome is None:
            raise InternalError("a row came back without a verdict")
        return outcome

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            TargetLost: the target cannot go on.
        """
        busy = False
        while True:
            if not busy:
                await self._wait_for_work()
            self._wake.clear()
            if (seconds := self._held_back()) > 0.0:
                await self._wait_for_change(seconds)
                continue
            await self._announced.hurry()
            busy = await self._step()
            # A session that got a verdict submits its next row before a pass over what is left begins without it.
            await asyncio.sleep(0)

    async def _wait_for_work(self) -> None:
        """Wait for a change; while rows wait for room, wake up when other sequences may have become idle."""
        await self._wait_for_change(IDLE_SECONDS if self._waiting else math.inf)

    async def _wait_for_change(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._wake.wait()

    def _held_back(self) -> float:
        """Seconds for which the next pass waits for announced rows: for all, or half where there are two groups."""
        always, briefly = self._announced[Gathers.ALWAYS], self._announced[Gathers.BRIEFLY]
        if not always + briefly or self._prompts_wait():
            return 0.0
        ready = [row for row in self._waiting if row.goal > 0]
        if self._speculation.groups > 1 and is_turn(ready, self._running):
            return 0.0
        if always:
            return math.inf
        if self._announced[Gathers.NOT] or not ready or not all(row.draft.tokens for row in ready):
            return 0.0
        return self._ready + self._pass_seconds * briefly / len(ready) - time.perf_counter()

    @property
    def _running(self) -> int:
        """Sequences that have been let in."""
        return len(self._sequences) - len(self._entering)

    def _prompts_wait(self) -> int:
        """Of how many prompts a pass could compute a part now; what waits for room does not count."""
        return sum(row.goal > 0 and len(row.tokens) == len(row.call.tokens) for row in self._waiting)

    async def _submit(self, row: Row) -> Outcome | None:
        result: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting[row] = result
        if row.goal and not self._ready:
            self._ready = time.perf_counter()
        self._wake.set()
        return await result

    async def _step(self) -> bool:
        """Let the thread do what it can; False when there was nothing it could do."""
        self._waiting = {row: result for row, result in self._waiting.items() if not result.cancelled()}
        groups, waited, self._ready = self._speculation.groups, self._announced.waited(), 0.0
        left_out = self._announced[Gathers.ALWAYS] > 0
        chosen = list(self._waiting) if groups == 1 else turn(list(self._waiting), self._running)
        rows = sorted(chosen, key=lambda row: row.rank)
        ended, self._ended = self._ended, []
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, self._model.step, ended, rows)
            time.sleep(_HAND_OVER)  # noqa: ASYNC251 - to stop is what it is for
            step = await running
        except Exception as error:
            _log.error("step_failed", exc_info=error)
            self._deliver({row: InternalError("the model failed") for row in rows})
            if isinstance(error, TargetLost):
                raise
            return False
        self._found |= {name: count for name, count in step.found.items() if name in self._entering}
        self._deliver(step.results)
        self._measure(step)
        if step.chunks:
            self._measure_pass(step, groups, waited, left_out=left_out)
        return bool(step.chunks or step.results)

    def _deliver(self, results: dict[Row, Outcome | InternalError | None]) -> None:
        for row, outcome in results.items():
            result = self._waiting.pop(row)
            if result.cancelled():
                continue
            if isinstance(outcome, InternalError):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    def _measure(self, step: ModelStep) -> None:
        metrics, memory = self._metrics, step.memory
        metrics.running.set(step.running)
        metrics.waiting.set(max(len(self._sequences) - step.running, 0))
        metrics.preemptions.inc(step.preempted)
        metrics.prefix_queried.inc(step.queried)
        metrics.prefix_found.inc(sum(step.found.values()))
        metrics.kv_usage.set(memory.live / memory.budget)
        for state, size in (("live", memory.live), ("cached", memory.cached), ("budget", memory.budget)):
            metrics.kv_bytes.labels(state).set(size)

    def _measure_pass(self, step: ModelStep, groups: int, waited: float, *, left_out: bool) -> None:
        names, self._pass_seconds = step.names, step.seconds
        self._metrics.batch_rows.observe(len(step.chunks))
        self._metrics.pass_seconds.observe(step.seconds)
        before = frozenset[str]().union(*self._names_before[-groups:])
        sessions = len(names) if groups == 1 else len(names | self._names_before[-1])
        follows, left = left_out or not names.isdisjoint(before), self._prompts_wait()
        sample = PassSample.of(step, sessions, follows=follows, groups=groups, waited=waited, left=left)
        self._speculation.passed(sample)
        self._names_before = self._names_before[1], names
