"""The loop over all sequences: schedule the rows that are ready, run them on the target, conclude what they commit.

Rows that come while a pass runs form the next one. A pass waits for drafts that are worth it, or where the sequences
that draft are in two groups for half of them. Plain passes of the same rows follow one another without the event loop.
The masks of grammars are computed beside the passes, and a row is in none before its own are known.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from specdec.errors import ContextLengthExceeded, InternalError, QueueFull
from verifier_service.backends.batch_plan import Gathers, Outcome, Row, is_turn, turn
from verifier_service.backends.kv_admission import IDLE_SECONDS
from verifier_service.backends.model_step import BatchModel, ModelStep, TargetLost
from verifier_service.backends.run_ahead import joins
from verifier_service.config import VerifierSettings
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.draft_waits import Drafting, DraftWaits
from verifier_service.passes.mask_lanes import PATIENCE, MaskLanes
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.pass_sample import PassHistory

_HAND_OVER = 5e-5
"""Seconds for which the event loop stops when a pass is ordered, so that the model's thread begins at once: the loop
has the rounds of the last pass to write, and would keep the interpreter for as long as that takes, up to 5 ms."""

_log = structlog.get_logger()

Result = Outcome | InternalError | None
"""What became of a row; None for an admission or a prefill."""


class Scheduled(Drafting, Protocol):
    """A sequence, as the loop sees it."""

    row: Row
    """Its first row, of goal 0."""

    def admitted(self, found: int) -> None:
        """Begin: there is KV, that of the first `found` tokens already."""

    def conclude(self, outcome: Outcome | None) -> None:
        """Commit a verdict and ask for the next round; None ends a prefill."""

    def tell(self) -> None:
        """Give the reader what `conclude` has committed."""

    def fail(self, error: Exception) -> None:
        """End with an error."""


class EngineLoop:
    """The loop in front of one target. All methods belong to the event loop."""

    def __init__(
        self,
        model: BatchModel,
        thread: Executor,
        settings: VerifierSettings,
        speculation: BatchSpeculation,
        metrics: VerifierMetrics,
    ) -> None:
        """Make a loop that `run` serves.

        Args:
            model: owned by the one worker of `thread`.
            settings: how many sequences may wait for their first KV.
        """
        self.drafts_first = model.drafts_first
        """Whether the pass that reads the end of a prompt judges a draft as well."""
        self._model = model
        self._thread = thread
        self._max_waiting = settings.max_waiting
        self._speculation = speculation
        self._metrics = metrics
        self._sequences: dict[str, Scheduled] = {}
        """All that have not ended, with KV or without, by KV name."""
        self._entering: dict[str, float] = {}
        """When those came that have not had KV yet, by KV name."""
        self._found: dict[str, int] = {}
        """How many tokens of each of these had KV when it was let in."""
        self._rows: dict[Row, Scheduled | None] = {}
        """The rows that wait or are under way, in the order in which they came, with the sequences that asked; None
        where none has asked yet."""
        self._own: dict[str, Row] = {}
        """The row that each sequence has asked for, by KV name."""
        self._unasked: dict[str, Row] = {}
        """The rows that are under way, or done, before their sequences ask for them, by KV name."""
        self._early: dict[Row, Result] = {}
        """What became of those that are done."""
        self._untold: list[Scheduled] = []
        """Sequences whose last verdict is committed and not told."""
        self._ended: list[str] = []
        """KV names of sequences that have ended, until the thread releases them."""
        self._ready = 0.0
        """When the first row of the next pass came, by `time.perf_counter`; 0 before it came."""
        self._pass_seconds = 0.0
        """Of the last pass."""
        self._passes = PassHistory()
        self._wake = asyncio.Event()
        self._waits = DraftWaits(self._changed)
        self._masks = MaskLanes(self._changed)
        self._stepped = 0.0
        """When the last step was over, by `time.perf_counter`."""
        self._under_way: Sequence[Row] = ()
        """The rows that the thread has now; empty while it does nothing."""

    def enter(self, sequence: Scheduled) -> None:
        """Give a sequence KV once there is room for its tokens, by rank, and carry it from then on.

        The KV may be taken away between the sequence's rows; it is computed again for the next one, which costs time
        and changes no token.

        Raises:
            ContextLengthExceeded: the row's limit would not fit an empty engine.
            QueueFull: too many sequences wait already.
        """
        row = sequence.row
        if not self._model.can_ever_admit(row.limit):
            raise ContextLengthExceeded(f"{row.limit} tokens are more than this server has memory for", "max_tokens")
        if len(self._entering) >= self._max_waiting:
            raise QueueFull(f"{self._max_waiting} generations are waiting already")
        self._sequences[row.kv_name] = sequence
        self._entering[row.kv_name] = time.perf_counter()
        self._add(sequence, row)

    def submit(self, sequence: Scheduled, row: Row) -> None:
        """Have the next pass take a row, for a verdict on its draft or to compute its first `goal` tokens."""
        unasked = self._unasked.pop(row.kv_name, None)
        if unasked is None:
            self._add(sequence, row)
        elif unasked in self._early:
            # Its verdict is concluded behind what is being concluded now.
            asyncio.get_running_loop().call_soon(self._conclude_early, sequence, unasked)
        else:
            self._rows[unasked], self._own[row.kv_name] = sequence, unasked
            if row.runs_ahead:
                self._model.told.ask(unasked)

    def await_draft(self, sequence: Scheduled, gamma: int) -> None:
        """Request a draft, for which passes wait as its source says, but none that computes a prompt."""
        self._waits.begin(sequence, gamma)

    def leave(self, sequence: Scheduled) -> None:
        """Forget a sequence that has ended, its rows and its KV."""
        name = sequence.row.kv_name
        if self._sequences.pop(name, None) is None:
            return
        self._entering.pop(name, None)
        self._found.pop(name, None)
        self._waits.drop(sequence)
        self._masks.forget(name)
        for row in (self._own.pop(name, None), self._unasked.pop(name, None)):
            if row is not None:
                self._rows.pop(row, None)
                self._early.pop(row, None)
        self._model.told.forget(name)
        if self._under_way:
            self._model.join([name], ())
        else:
            self._ended.append(name)
        self._changed(stops=not self._under_way)

    def runs_ahead_of(self, kv_name: str) -> bool:
        """Whether the next round of a sequence, a plain one, has begun before the sequence asks for it."""
        return kv_name in self._unasked

    @property
    def running(self) -> int:
        """Sequences that have been let in."""
        return len(self._sequences) - len(self._entering)

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            TargetLost: the target cannot go on.
        """
        busy = False
        try:
            while True:
                if not (busy and (self._rows or self._ended)):  # while rows wait for room, others may become idle
                    await self._wait_for_change(IDLE_SECONDS if self._rows else math.inf)
                self._wake.clear()
                self._model.told.go()
                if (seconds := self._held_back()) > 0.0:
                    await self._wait_for_change(seconds)
                    continue
                self._waits.hurry()
                busy = await self._step()
        finally:
            self._model.told.stop()
            self._masks.close()

    def _add(self, sequence: Scheduled, row: Row) -> None:
        self._rows[row], self._own[row.kv_name] = sequence, row
        if row.goal and not self._ready:
            self._ready = time.perf_counter()
        if self._masks.begin(row):
            return
        if joining := bool(self._under_way) and joins(row):
            self._model.join((), [row])
        self._changed(stops=not joining)

    def _changed(self, *, stops: bool = True) -> None:
        self._wake.set()
        if stops:
            self._model.told.stop()

    async def _wait_for_change(self, seconds: float) -> None:
        self._tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._wake.wait()

    def _held_back(self) -> float:
        """Seconds for which the next pass waits: for cheap masks a moment, for all drafts, or half where there are two
        groups."""
        if self._masks.soon and (left := self._stepped + PATIENCE - time.perf_counter()) > 0.0:
            return left
        always, briefly = self._waits[Gathers.ALWAYS], self._waits[Gathers.BRIEFLY]
        if not always + briefly or self._prompts:
            return 0.0
        ready = [row for row in self._rows if row.goal > 0 and not self._masks.waits(row)]
        if self._speculation.groups > 1 and is_turn(ready, self.running):
            return 0.0
        if always:
            return math.inf
        if self._waits[Gathers.NOT] or not ready or not all(row.draft.tokens for row in ready):
            return 0.0
        return self._ready + self._pass_seconds * briefly / len(ready) - time.perf_counter()

    @property
    def _prompts(self) -> int:
        """Of how many prompts a pass could compute a part now; what waits for room does not count."""
        return sum(row.goal > 0 and len(row.tokens) == len(row.call.tokens) for row in self._rows)

    async def _step(self) -> bool:
        """Let the thread do what it can; False when there was nothing it could do."""
        groups, waited, self._ready = self._speculation.groups, self._waits.waited(), 0.0
        left_out = self._waits[Gathers.ALWAYS] > 0
        known = [row for row in self._rows if not self._masks.waits(row)]
        chosen = known if groups == 1 else turn(known, self.running)
        rows = sorted(chosen, key=lambda row: row.rank)
        ended, self._ended = self._ended, []
        self._under_way, loop = rows, asyncio.get_running_loop()
        passed = partial(loop.call_soon_threadsafe, self._passed)  # type: ignore[arg-type]
        try:
            running = loop.run_in_executor(self._thread, self._model.run, ended, rows, passed)
            time.sleep(_HAND_OVER)  # noqa: ASYNC251 - to stop is what it is for
            self._tell()
            step = await running
        except Exception as error:
            _log.error("step_failed", exc_info=error)
            failed = InternalError("the model failed")
            self._conclude([(row, self._rows.pop(row), failed) for row in self._under_way if row in self._rows])
            if isinstance(error, TargetLost):
                raise
            return False
        finally:
            self._under_way = ()
        self._take(step, groups, waited, left_out=left_out)
        return bool(step.chunks or step.results)

    def _passed(self, step: ModelStep, following: Sequence[Row]) -> None:
        """Take a step after which a pass over `following` has begun already."""
        for row in following:
            if row not in self._rows and row.kv_name in self._sequences:
                self._rows[row] = None
                self._unasked[row.kv_name] = row
        self._under_way = following
        self._take(step, 1, 0.0, left_out=False)
        self._tell()

    def _take(self, step: ModelStep, groups: int, waited: float, *, left_out: bool) -> None:
        """Learn from a step, then conclude it: the next draft lengths follow what is learnt."""
        self._stepped = time.perf_counter()
        self._found |= {name: count for name, count in step.found.items() if name in self._entering}
        done = [(row, self._rows.pop(row), result) for row, result in step.results.items() if row in self._rows]
        if step.chunks:
            self._pass_seconds = step.seconds
            self._speculation.passed(self._passes.add(step, groups, waited, self._prompts, waits=left_out))
        self._conclude(done)
        publish(step, len(self._sequences), self._metrics)

    def _conclude(self, done: Sequence[tuple[Row, Scheduled | None, Result]]) -> None:
        """Have each sequence commit what became of its row and ask for the next; nothing is told yet."""
        for row, sequence, result in done:
            if sequence is None:
                self._early[row] = result
            else:
                self._own.pop(row.kv_name, None)
                sequence.guarded(self._conclude_one, sequence, row, result)

    def _conclude_early(self, sequence: Scheduled, row: Row) -> None:
        sequence.guarded(self._conclude_one, sequence, row, self._early.pop(row))
        self._tell()

    def _conclude_one(self, sequence: Scheduled, row: Row, result: Result) -> None:
        if row.kv_name not in self._sequences:
            return
        if isinstance(result, InternalError):
            raise result
        if (came := self._entering.pop(row.kv_name, None)) is not None:
            self._metrics.admission_seconds.observe(time.perf_counter() - came)
            sequence.admitted(self._found.pop(row.kv_name, 0))
            return
        if result is not None:
            self._untold.append(sequence)
        sequence.conclude(result)

    def _tell(self) -> None:
        """Show what is committed, while the thread has the next pass where there is one."""
        untold, self._untold = self._untold, []
        for sequence in untold:
            sequence.guarded(sequence.tell)


def publish(step: ModelStep, sequences: int, metrics: VerifierMetrics) -> None:
    """Publish a step; `sequences` run or wait for KV."""
    memory = step.memory
    metrics.running.set(step.running)
    metrics.waiting.set(max(sequences - step.running, 0))
    metrics.preemptions.inc(step.preempted)
    metrics.prefix_queried.inc(step.queried)
    metrics.prefix_found.inc(sum(step.found.values()))
    metrics.kv_usage.set(memory.live / memory.budget)
    for state, size in (("live", memory.live), ("cached", memory.cached), ("budget", memory.budget)):
        metrics.kv_bytes.labels(state).set(size)
    if step.chunks:
        metrics.batch_rows.observe(len(step.chunks))
        metrics.pass_seconds.observe(step.seconds)
