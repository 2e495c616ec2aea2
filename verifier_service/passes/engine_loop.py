"""Scheduling loop over all sequences: select the ready rows, run them on the target, and commit the verdicts.

Rows that arrive during a pass join the next one. A pass waits for drafts that are worth the wait. With two groups, it
waits for half of the sequences that draft. Plain passes of the same rows follow one another without the event loop.
Grammar masks are computed in parallel with passes, and a row joins a pass only after its masks are ready.
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
from verifier_service.backends.model_step import BatchModel, ModelStep, TargetLost
from verifier_service.backends.model_thread import IDLE_SECONDS, joins
from verifier_service.config import VerifierSettings
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.draft_waits import Drafting, DraftWaits
from verifier_service.passes.mask_lanes import PATIENCE, MaskLanes
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import PassHistory

_HAND_OVER = 5e-5
"""Seconds that the event loop sleeps after it submits a pass, so that the model's thread starts at once. Otherwise the
loop would hold the interpreter lock while it writes the rounds of the last pass."""
_LAUNCH = 3e-3
"""Seconds from the drafts of a head to the point where their pass no longer needs the interpreter lock, and a margin:
drafts take longer in some rounds than in the round before."""

_log = structlog.get_logger()

Result = Outcome | InternalError | None
"""Result of a row; None for an admission or a prefill."""


class Scheduled(Drafting, Protocol):
    """Interface of a sequence for the loop."""

    row: Row
    """First row of the sequence, with goal 0."""

    def admitted(self, found: int) -> None:
        """Begin after admission. The first `found` tokens have KV already."""

    def conclude(self, outcome: Outcome | None) -> None:
        """Commit a verdict and request the next round; None ends a prefill."""

    def tell(self) -> None:
        """Send the reader the round that `conclude` committed."""

    def fail(self, error: Exception) -> None:
        """End the sequence with an error."""


class EngineLoop:
    """Scheduling loop of one target. All methods run on the event loop."""

    def __init__(
        self,
        model: BatchModel,
        thread: Executor,
        settings: VerifierSettings,
        speculation: BatchSpeculation,
        metrics: VerifierMetrics,
    ) -> None:
        """Create a loop; `run` serves it.

        Args:
            model: target model, owned by the only worker of `thread`.
            thread: executor that runs the model.
            settings: settings with the limit of sequences that wait for their first KV.
            speculation: choice of draft lengths, which learns from each pass.
            metrics: metrics to publish each step to.
        """
        self.drafts_first = model.drafts_first
        """Whether the pass that computes the end of a prompt can also judge a draft."""
        self._model = model
        self._thread = thread
        self._max_waiting = settings.max_waiting
        self._speculation = speculation
        self._metrics = metrics
        self._sequences: dict[str, Scheduled] = {}
        """Sequences that have not ended, with or without KV, by KV name."""
        self._entering: dict[str, float] = {}
        """Arrival time of each sequence that has never had KV, by KV name."""
        self._found: dict[str, int] = {}
        """Number of tokens found in the prefix cache at admission, by KV name, for sequences in `_entering`."""
        self._rows: dict[Row, Scheduled | None] = {}
        """Waiting and running rows in order of arrival, with the sequence that requested each. None for a row that its
        sequence has not requested yet."""
        self._own: dict[str, Row] = {}
        """Row requested by each sequence, by KV name."""
        self._prefetched: dict[str, Row] = {}
        """Rows started or done before their sequences requested them, by KV name."""
        self._early: dict[Row, Result] = {}
        """Results of the rows in `_prefetched` that are done."""
        self._untold: list[Scheduled] = []
        """Sequences whose last round is committed and not yet sent to the reader."""
        self._ended: list[str] = []
        """KV names of ended sequences that the thread has not released."""
        self._ready = 0.0
        """Arrival time of the first row of the next pass, by `time.perf_counter`; 0 before it arrives."""
        self._head_seconds = 0.0
        """Time for which the last pass waited for drafts of the target's head. The rounds before are sent after it,
        since a head, unlike most of a pass, needs the interpreter lock often."""
        self._pass_seconds = 0.0
        """Duration of the last pass in seconds."""
        self._passes = PassHistory()
        self._wake = asyncio.Event()
        self._waits = DraftWaits(self._changed)
        self._masks = MaskLanes(self._changed)
        self._stepped = 0.0
        """End time of the last step, by `time.perf_counter`."""
        self._under_way: Sequence[Row] = ()
        """Rows that the thread runs now; empty while it is idle."""

    def enter(self, sequence: Scheduled) -> None:
        """Queue a sequence for admission by rank, and schedule its rows from then on.

        The sequence may be preempted between two rows. Its KV is then recomputed for the next one, which costs time
        and changes no token.

        Raises:
            ContextLengthExceeded: the row's limit does not fit an empty engine.
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
        """Schedule a row for the next pass, for a verdict on its draft or to compute its first `goal` tokens."""
        prefetched = self._prefetched.pop(row.kv_name, None)
        if prefetched is None:
            self._add(sequence, row)
        elif prefetched in self._early:
            # Conclude its verdict after the current call returns.
            asyncio.get_running_loop().call_soon(self._conclude_early, sequence, prefetched)
        else:
            self._rows[prefetched], self._own[row.kv_name] = sequence, prefetched
            if row.runs_ahead:
                self._model.flags.ask(prefetched)

    def await_draft(self, sequence: Scheduled, gamma: int) -> None:
        """Request a draft. Passes wait for it as its source specifies, except passes that compute a prompt."""
        self._waits.begin(sequence, gamma)

    def leave(self, sequence: Scheduled) -> None:
        """Remove an ended sequence with its rows, and release its KV."""
        name = sequence.row.kv_name
        if self._sequences.pop(name, None) is None:
            return
        self._entering.pop(name, None)
        self._found.pop(name, None)
        self._waits.drop(sequence)
        self._masks.forget(name)
        for row in (self._own.pop(name, None), self._prefetched.pop(name, None)):
            if row is not None:
                self._rows.pop(row, None)
                self._early.pop(row, None)
        self._model.flags.forget(name)
        if self._under_way:
            self._model.join([name], ())
        else:
            self._ended.append(name)
        self._changed(stops=not self._under_way)

    def interrupt(self) -> None:
        """Let passes that run ahead end, because other work waits for the model's thread."""
        self._model.flags.stop()

    def runs_ahead_of(self, kv_name: str) -> bool:
        """Whether the next, plain round of a sequence has started before the sequence requested it."""
        return kv_name in self._prefetched

    @property
    def running(self) -> int:
        """Number of admitted sequences."""
        return len(self._sequences) - len(self._entering)

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            TargetLost: the target cannot go on.
        """
        busy = False
        try:
            while True:
                if not (busy and (self._rows or self._ended)):  # while rows wait for KV, others may become idle
                    await self._wait_for_change(IDLE_SECONDS if self._rows else math.inf)
                self._wake.clear()
                self._model.flags.go()
                if (seconds := self._held_back()) > 0.0:
                    await self._wait_for_change(seconds)
                    continue
                self._waits.stop_waiting()
                busy = await self._step()
        finally:
            self._model.flags.stop()
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
            self._model.flags.stop()

    async def _wait_for_change(self, seconds: float) -> None:
        self._tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._wake.wait()

    def _held_back(self) -> float:
        """Return the seconds to delay the next pass for cheap grammar masks or for drafts.

        With two groups, the drafts of half of the sequences are enough.
        """
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
        """Number of admitted sequences whose prompts are incomplete and could be computed by the next pass."""
        return sum(row.goal > 0 and len(row.tokens) == len(row.call.tokens) for row in self._rows)

    async def _step(self) -> bool:
        """Run one or more steps on the model's thread; return whether the last one did any work."""
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
            time.sleep(_HAND_OVER)  # noqa: ASYNC251 - blocks on purpose
            if any(row.head.gamma for row in rows):
                await asyncio.wait([running], timeout=self._head_seconds + _LAUNCH)
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
        """Process a step after which a pass over `following` has already started."""
        for row in following:
            if row not in self._rows and row.kv_name in self._sequences:
                self._rows[row] = None
                self._prefetched[row.kv_name] = row
        self._under_way = following
        self._take(step, 1, 0.0, left_out=False)
        self._tell()

    def _take(self, step: ModelStep, groups: int, waited: float, *, left_out: bool) -> None:
        """Record the measurements of a step, then conclude it, so that the next draft lengths use them."""
        self._stepped = time.perf_counter()
        self._found |= {name: count for name, count in step.found.items() if name in self._entering}
        done = [(row, self._rows.pop(row), result) for row, result in step.results.items() if row in self._rows]
        made = (each.drafted for each in step.results.values() if isinstance(each, Outcome))
        self._head_seconds = max((each.seconds for each in made if each), default=0.0)
        if step.chunks:
            self._pass_seconds = step.seconds
            self._speculation.passed(self._passes.add(step, groups, waited, self._prompts, waits=left_out))
        self._conclude(done)
        publish(step, len(self._sequences), self._metrics)

    def _conclude(self, done: Sequence[tuple[Row, Scheduled | None, Result]]) -> None:
        """Pass each result to its sequence, which commits it and requests the next row. Readers get nothing yet."""
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
        """Send committed rounds to the readers. The thread may run the next pass meanwhile."""
        untold, self._untold = self._untold, []
        for sequence in untold:
            sequence.guarded(sequence.tell)


def publish(step: ModelStep, sequences: int, metrics: VerifierMetrics) -> None:
    """Publish the metrics of a step; `sequences` is the number that run or wait for KV."""
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
