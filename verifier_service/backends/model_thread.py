"""Steps of the model thread: release and admit sequences, then run one pass over the runnable rows."""

import time
from collections.abc import Iterable, Sequence

import structlog

from specdec.engine import Engine
from specdec.errors import InternalError
from specdec.rules.draft import Verdict
from verifier_service.backends.batch_plan import Outcome, Row, ScheduledChunk, plan
from verifier_service.backends.kv_admission import KvAdmission
from verifier_service.backends.model_step import ModelStep
from verifier_service.backends.run_ahead import SteppedModel
from verifier_service.backends.target_pass import verify_batch
from verifier_service.config import VerifierSettings

_log = structlog.get_logger()


class ModelThread(SteppedModel):
    """Owner of the engine, on one thread. The event loop may call `can_ever_admit`, `join` and `watch`."""

    drafts_first = True

    def __init__(self, engine: Engine, settings: VerifierSettings) -> None:
        super().__init__()
        self._engine = engine
        self._settings = settings
        self._kv = KvAdmission(engine)
        self._rotation = Rotation(settings.step_sessions)

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
        chunks = [] if results else self._chunks(runnable)
        started = time.perf_counter()
        judged = verify_batch(self._engine, chunks) if chunks else []
        seconds = time.perf_counter() - started
        self._rotation.took_part(chunk.row.kv_name for chunk in chunks)
        for chunk, result in zip(chunks, judged, strict=True):
            if isinstance(result, Verdict):
                results[chunk.row] = Outcome(result, started, seconds, chunk.drafts)
            elif chunk.complete or result is not None:
                results[chunk.row] = result
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

    def _chunks(self, rows: Sequence[Row]) -> list[ScheduledChunk]:
        """Return the chunks of the next pass, without the sequences preempted for it."""
        waiting = self._rotation.chosen([(row, self._engine.length(row.kv_name)) for row in rows])
        chunks = plan(waiting, self._settings.chunk_tokens, self._settings.draft_tokens)
        for chunk in chunks:
            if chunk.row.kv_name in self._kv:
                self._kv.reserve(chunk.row.kv_name, chunk.length)
        return [chunk for chunk in chunks if chunk.row.kv_name in self._kv]


class Rotation:
    """Fair choice of the decoding sequences of each pass, if a pass takes only some of them."""

    def __init__(self, most: int | None) -> None:
        """Allow at most `most` decoding sequences in a pass; None for no limit."""
        self._most = most
        self._passes = 0
        self._taken: dict[str, float] = {}
        """Decayed mean of the pass numbers that each sequence took part in, by KV name. The latest one weighs half.

        With the latest number alone, sequences of the same pass would tie, and the same ones would always be left
        out."""

    def chosen(self, waiting: Sequence[tuple[Row, int]]) -> list[tuple[Row, int]]:
        """Return the rows of the next pass: all prompts, and the decoding rows that took part longest ago.

        Args:
            waiting: rows and their KV lengths, as for `plan`.
        """
        if self._most is None:
            return list(waiting)
        decoding = [row for row, start in waiting if row.goal - start == 1]
        decoding.sort(key=lambda row: self.place(row.kv_name))
        late = set(decoding[self._most :])
        return [each for each in waiting if each[0] not in late]

    def place(self, kv_name: str) -> float:
        """Return the sort key of a decoding sequence, lowest first."""
        return self._taken.get(kv_name, 0.0)

    def took_part(self, kv_names: Iterable[str]) -> None:
        """Record the sequences of a pass."""
        self._passes += 1
        for name in kv_names:
            self._taken[name] = (self._taken.get(name, self._passes) + self._passes) / 2

    def forget(self, kv_name: str) -> None:
        """Drop an ended sequence."""
        self._taken.pop(kv_name, None)
