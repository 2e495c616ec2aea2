"""Steps of the model thread: release and admit sequences, then run one pass over the runnable rows."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from specdec.engine import Engine, SequenceMemory
from specdec.engine.heads.fusing import FusingEngine
from specdec.engine.heads.headed import HeadedEngine
from specdec.engine.protocol import PromptReader
from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from specdec.wire.features import Features
from verifier_service.backends.batch_plan import HeadDraft, Outcome, Row, ScheduledChunk, TokenPrefix, plan
from verifier_service.backends.head_drafter import HeadDrafter
from verifier_service.backends.model_step import Changes, ModelStep, Passed, PendingChanges, Rotation, RunAheadFlags
from verifier_service.backends.target_pass import verify_batch
from verifier_service.config import VerifierSettings

IDLE_SECONDS = 1.0
"""Seconds without a row after which any waiting sequence may preempt a sequence."""
_MOST_JOINED = 4096
"""Longest row, in tokens, that may join between two passes. Handing over a longer row may block the event loop."""
_log = structlog.get_logger()


class KvAdmission:
    """Set of the sequences that have KV. A preempted sequence recomputes its tokens, which costs only time.

    The sequence with the lowest rank can preempt all others, and a sequence whose limit does not fit an empty engine is
    never admitted. So that sequence always makes progress, and it keeps its place until it ends.
    """

    def __init__(self, engine: SequenceMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty set; `clock` returns seconds."""
        self._engine = engine
        self._clock = clock
        self._ranks: dict[str, float] = {}
        """Rank of each sequence that has KV, by KV name."""
        self._used: dict[str, float] = {}
        """Time of the last row of each of these sequences, by KV name."""
        self.preempted = 0
        """Number of preemptions."""

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, kv_name: object) -> bool:
        return kv_name in self._ranks

    def admit(self, row: Row) -> bool:
        """Admit the sequence of a row. If memory is short, preempt idle sequences regardless of their rank.

        So a caller that does not read cannot block others. A prompt to be scored does not use the prefix cache.

        Returns:
            False if there is no room now.
        """
        known = row.tokens if row.scores is None else ()
        while not self._engine.admit(row.kv_name, row.limit, known, row.call.cache_salt):
            idle = min(self._used, key=self._used.__getitem__, default=None)
            if idle is None or self._used[idle] > self._clock() - IDLE_SECONDS:
                return False
            self._preempt(idle)
        if isinstance(self._engine, PromptReader):
            self._engine.read_prompt(row.kv_name, row.call.prompt_len)
        self._ranks[row.kv_name] = row.rank
        self.touch(row.kv_name)
        if row.head.follows and isinstance(self._engine, HeadedEngine | FusingEngine):
            self._engine.follow(row.kv_name, row.limit, row.tokens, row.call.cache_salt)
        return True

    def touch(self, kv_name: str) -> None:
        """Record that a sequence has a row now."""
        if kv_name in self._ranks:
            self._used[kv_name] = self._clock()

    def release(self, kv_name: str) -> None:
        """Free the KV of a sequence. Does nothing if it has none."""
        if self._ranks.pop(kv_name, None) is not None:
            del self._used[kv_name]
            self._engine.release(kv_name)

    def reserve(self, kv_name: str, length: int) -> bool:
        """Reserve KV for `length` tokens of a sequence. If memory is short, preempt sequences, greatest rank first.

        Returns:
            False if the sequence itself had the greatest rank and was preempted.
        """
        while not self._engine.reserve(kv_name, length):
            last = max(self._ranks, key=self._ranks.__getitem__)
            self._preempt(last)
            if last == kv_name:
                return False
        return True

    def _preempt(self, kv_name: str) -> None:
        self.release(kv_name)
        self.preempted += 1


class SteppedModel(ABC):
    """A `BatchModel` that runs its steps on one thread."""

    def __init__(self) -> None:
        self.flags = RunAheadFlags()
        self.pending = PendingChanges()

    def join(self, ended: Sequence[str], rows: Sequence[Row]) -> None:
        """Pass changes to the next pass; see `BatchModel`."""
        self.pending.add(ended, rows)

    async def watch(self) -> None:
        """Wait forever. The target can be lost only with its process or in a step."""
        await asyncio.get_running_loop().create_future()

    @abstractmethod
    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Release sequences, admit waiting ones, and run one pass.

        If some rows are done without a pass, the step runs none: the next step follows at once and includes the next
        rows of their sequences. So an admitted sequence joins the next pass.

        Args:
            ended: KV names of the sequences that have ended.
            rows: rows in order of rank, at most one for each sequence.

        Raises:
            TargetLost: the target cannot run further steps.
        """

    def run(self, ended: Sequence[str], rows: Sequence[Row], passed: Passed) -> ModelStep:
        """Run a step and the steps that run ahead after it; see `BatchModel`."""
        over = self.pending.begin(rows)
        rows = [row for row in rows if row.kv_name not in over]
        step = self.step([*over, *ended], rows)
        while _may_go_on(step, self.flags):
            changes = self.pending.take()
            successors = following(step, rows, changes)
            if not successors and not changes.ended:
                break
            passed(step, successors)
            rows, step = successors, self.step(changes.ended, successors)
        return step


def joins(row: Row) -> bool:
    """Whether a row can join between two passes that run ahead."""
    return row.runs_ahead and not row.draft.tokens and len(row.tokens) <= _MOST_JOINED


def following(step: ModelStep, rows: Sequence[Row], changes: Changes) -> Sequence[Row]:
    """Return the rows of the next step in order of rank.

    They are the successors of the rows that the step has done, its other rows, and the rows that join.

    Args:
        step: the step just done.
        rows: rows given to that step.
        changes: sequences that have ended, and rows that join.
    """
    successors = [each for row in rows if (each := _successor(row, step) if row in step.results else row)]
    ended = set(changes.ended)
    return sorted((row for row in [*successors, *changes.rows] if row.kv_name not in ended), key=lambda row: row.rank)


def _may_go_on(step: ModelStep, flags: RunAheadFlags) -> bool:
    """Whether another step may follow without the event loop. Never after a step that has done no row."""
    if flags.stopped or not step.results:
        return False
    return all(_may_follow(row, result, flags) for row, result in step.results.items())


def _may_follow(row: Row, result: Outcome | InternalError | None, flags: RunAheadFlags) -> bool:
    """Whether the next row of a sequence may start before the session requests it."""
    if not row.runs_ahead or row.draft.tokens or isinstance(result, InternalError):
        return False
    return row.goal == 0 if result is None else not row.prefetched or flags.asked(row)


def _successor(row: Row, step: ModelStep) -> Row | None:
    """Return the row that follows one that is done, or None if its sequence ends."""
    outcome = step.results[row]
    if not isinstance(outcome, Outcome):
        return row.successor(row.tokens)
    tokens = outcome.verdict.tokens
    if len(row.tokens) + len(tokens) >= row.limit or tokens[-1] in row.call.stop_token_ids:
        return None
    known = row.tokens if isinstance(row.tokens, TokenPrefix) else TokenPrefix([*row.tokens])
    return row.successor(known.followed_by(tokens))


class _DraftedRow(NamedTuple):
    """A row with the draft of the head, which takes the place of the row in a pass."""

    row: Row
    made: HeadDraft


class ModelThread(SteppedModel):
    """Owner of the engine, on one thread. The event loop may call `can_ever_admit`, `join` and `watch`."""

    drafts_first = True

    def __init__(self, engine: Engine, settings: VerifierSettings) -> None:
        super().__init__()
        self._engine = engine
        self._settings = settings
        self._kv = KvAdmission(engine)
        self._rotation = Rotation(settings.step_sessions)
        self._head = HeadDrafter(engine.head) if isinstance(engine, HeadedEngine) else None

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence of up to `limit` tokens fits an empty engine."""
        return self._engine.can_ever_admit(limit)

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Release sequences, admit waiting ones, and run one pass; see `SteppedModel`."""
        for kv_name in ended:
            self._kv.release(kv_name)
            self._rotation.forget(kv_name)
        preempted = self._kv.preempted
        results: dict[Row, Outcome | InternalError | None] = {}
        queried, found = self._admit(rows, results)
        runnable = self._runnable(rows, results)
        waiting = [] if results else self._waiting(runnable)
        drafted = self._drafted(waiting)
        asked = {each.row: row for row, each in drafted.items()}
        chunks = self._chunks([(drafted[row].row if row in drafted else row, start) for row, start in waiting])
        started = time.perf_counter()
        judged = verify_batch(self._engine, chunks) if chunks else []
        seconds = time.perf_counter() - started
        self._rotation.passed(chunks, seconds)
        for chunk, result in zip(chunks, judged, strict=True):
            row = asked.get(chunk.row, chunk.row)
            if isinstance(result, Verdict):
                own = drafted[row].made if row in drafted else None
                results[row] = Outcome(result, started, seconds, chunk.drafts, own, self._features(row))
            elif chunk.complete or result is not None:
                results[row] = result
        lost = self._kv.preempted - preempted
        return ModelStep(results, chunks, started, seconds, len(self._kv), lost, queried, found, self._engine.memory)

    def _admit(
        self, rows: Sequence[Row], results: dict[Row, Outcome | InternalError | None]
    ) -> tuple[int, dict[str, int]]:
        """Admit sequences without KV in the order of the rows, until one does not fit.

        Returns:
            Total tokens of the admitted sequences, and the tokens found in the prefix cache for each by KV name.
        """
        for row in rows:
            self._kv.touch(row.kv_name)
        queried, found = 0, {}
        for row in rows:
            if row.kv_name in self._kv:
                continue
            try:
                if not self._kv.admit(row):
                    break
            except Exception as error:  # noqa: BLE001 - for example out of memory; other sessions go on
                _log.error("admission_failed", session=row.kv_name, exc_info=error)
                results[row] = InternalError("there is no memory for this sequence")
            else:
                queried += len(row.tokens)
                found[row.kv_name] = self._engine.length(row.kv_name)
        return queried, found

    def _runnable(self, rows: Sequence[Row], results: dict[Row, Outcome | InternalError | None]) -> list[Row]:
        """Return the rows that a pass can compute. Rows that have already reached their goal are done."""
        runnable: list[Row] = []
        for row in rows:
            if row.kv_name not in self._kv:
                continue
            if self._engine.length(row.kv_name) >= row.goal:
                results[row] = None
            else:
                runnable.append(row)
        return runnable

    def _waiting(self, rows: Sequence[Row]) -> list[tuple[Row, int]]:
        """Return the rows that the next pass may compute, each with the length of its KV."""
        return self._rotation.chosen([(row, self._engine.length(row.kv_name)) for row in rows])

    def _drafted(self, waiting: Sequence[tuple[Row, int]]) -> dict[Row, "_DraftedRow"]:
        """Return the rows that request a draft of the head, with that draft."""
        asking = [row for row, _ in waiting if row.head.gamma]
        if self._head is None or not asking:
            return {}
        behind = {row for row in asking if self._head.is_behind(row)}
        began = time.perf_counter()
        drafts = self._head.drafts(asking)
        seconds = time.perf_counter() - began
        return {
            row: _DraftedRow(replace(row, draft=each, prefilling=row in behind), HeadDraft(each, seconds))
            for row, each in drafts.items()
        }

    def _features(self, row: Row) -> Features | None:
        """Return the new features of a judged row; None if there are none. A row that runs ahead leaves its features
        for the next that does not, because nothing drafts."""
        if row.runs_ahead or not isinstance(self._engine, FusingEngine):
            return None
        found = self._engine.take(row.kv_name)
        return None if found is None else Features.of(*found)

    def _chunks(self, waiting: Sequence[tuple[Row, int]]) -> list[ScheduledChunk]:
        """Return the chunks of the next pass, without the sequences preempted for it."""
        chunks = plan(waiting, self._settings.chunk_tokens, self._settings.draft_tokens)
        for chunk in chunks:
            if chunk.row.kv_name in self._kv:
                self._kv.reserve(chunk.row.kv_name, chunk.length)
        return [chunk for chunk in chunks if chunk.row.kv_name in self._kv]
