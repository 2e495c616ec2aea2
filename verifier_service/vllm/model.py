"""Steps of a target on vLLM: release and admit sequences, then run one pass over the runnable rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError
from verifier_service.backends.batch_plan import HeadDraft, Outcome, Row, ScheduledChunk
from verifier_service.backends.model_step import ModelStep, TargetLost
from verifier_service.backends.model_thread import SteppedModel
from verifier_service.vllm.batch import ComputedPiece, Judged
from verifier_service.vllm.head.drafts import VllmHead
from verifier_service.vllm.kv.blocks import SharedBlocks

_LOAD_SECONDS = 0.25
"""Seconds that a pass without any other work waits for KV. Rows that come meanwhile join the next one."""
_LOOK_SECONDS = 0.001
"""Seconds between two looks at loads."""

_log = structlog.get_logger()

Results = dict[Row, Outcome | InternalError | None]


class VllmModel(SteppedModel):
    """Owner of vLLM's engine. All methods run on one thread."""

    drafts_first = False

    def __init__(self, engine: Any, vocab_size: int, add: Callable[[Row], str], head: VllmHead | None = None) -> None:
        """Create a target.

        Args:
            engine: vLLM's `LLMEngine`, whose scheduler is a `RowScheduler`.
            vocab_size: size of the vocabulary.
            add: adds the sequence of a row to the engine and returns its request id.
            head: draft head of the target, if it has one.
        """
        super().__init__()
        core = engine.engine_core.engine_core
        self._engine = engine
        self._add = add
        self._head = head
        self.head_step = None if head is None else head.step_seconds
        """Duration of a step of the head, in seconds; None if there is none."""
        self._scheduler: Any = core.scheduler
        self._scheduler.vocab_size = vocab_size
        cache = engine.vllm_config.cache_config
        self.most_tokens = int(cache.num_gpu_blocks * self._scheduler.block_size)
        """Number of tokens that fit an empty engine."""
        self._budget = sum(tensor.size for tensor in self._scheduler.kv_cache_config.kv_cache_tensors)
        self.blocks: SharedBlocks | None = self._scheduler.blocks
        """Blocks of KV exchanged with the verifier, if our connector is installed."""
        self._requests: dict[str, str] = {}
        """vLLM's request id of each admitted sequence, by KV name."""

    def step(self, ended: Sequence[str], rows: Sequence[Row]) -> ModelStep:
        """Release sequences, admit waiting ones, and run one pass; see `SteppedModel`."""
        started, preempted = time.perf_counter(), self._scheduler.preempted
        results: Results = {}
        try:
            self._release(ended)
            queried, found = self._admit(rows, results)
            ready = self._ready(rows, results)
            made = {} if results else self._drafted(ready)
            started = time.perf_counter()
            chunks = self._pass(ready, made, results, started) if ready and not results else []
        except Exception as error:
            raise TargetLost("vllm failed in a step") from error
        seconds, lost = time.perf_counter() - started, self._scheduler.preempted - preempted
        running = len(self._scheduler.running)
        return ModelStep(results, chunks, started, seconds, running, lost, queried, found, self._memory)

    def copy_blocks(self) -> bool:
        """Answer questions about blocks, and run their copies while no row waits; return whether any is under way.

        Raises:
            TargetLost: vLLM failed.
        """
        if self.blocks is None or not self.blocks.busy:
            return False
        try:
            self._engine.engine_core.get_output()
        except Exception as error:
            raise TargetLost("vllm failed to copy blocks") from error
        return self.blocks.busy

    @property
    def _memory(self) -> KvMemory:
        """KV memory in use. vLLM counts cached blocks as free, so the cached size is 0."""
        live = round(self._scheduler.kv_cache_manager.usage * self._budget)
        own = KvMemory(self._budget, live, 0)
        return own if self._head is None else own.joined(self._head.memory)

    def _release(self, ended: Sequence[str]) -> None:
        requests = [self._requests.pop(name) for name in ended if name in self._requests]
        if self._head is not None:
            for name in ended:
                self._head.leave(name)
        if requests:
            self._engine.abort_request(requests, internal=True)

    def _admit(self, rows: Sequence[Row], results: Results) -> tuple[int, Mapping[str, int]]:
        """Admit sequences in the order of the rows, until one does not fit.

        Returns:
            Total tokens of the admitted sequences, and the tokens found in the prefix cache for each by KV name.
        """
        queried, found = 0, {}
        for row in rows:
            if row.kv_name in self._requests:
                continue
            if not self._has_room(row):
                break
            try:
                request = self._add(row)
            except Exception as error:  # noqa: BLE001 - vLLM refuses this request; others go on
                _log.error("admission_failed", session=row.kv_name, exc_info=error)
                results[row] = InternalError("vllm refuses this sequence")
                continue
            self._requests[row.kv_name] = request
            queried += len(row.tokens)
            found[row.kv_name] = self._scheduler.cached(request)
            results[row] = None
        return queried, found

    def _has_room(self, row: Row) -> bool:
        """Whether a sequence can be admitted now. The first one always can."""
        if not self._requests:
            return True
        full = len(self._requests) >= self._scheduler.max_num_running_reqs
        return not full and len(row.tokens) < self._scheduler.free_tokens

    def _ready(self, rows: Sequence[Row], results: Results) -> dict[str, Row]:
        """Return the rows that a pass can judge, by request. vLLM splits prompts itself, so a prefill row is done."""
        ready: dict[str, Row] = {}
        for row in rows:
            if row.kv_name not in self._requests or row in results:
                continue
            if row.goal < len(row.tokens):
                results[row] = None
            else:
                ready[self._requests[row.kv_name]] = row
        return ready

    def _drafted(self, ready: Mapping[str, Row]) -> Mapping[str, HeadDraft]:
        """Return the draft of the head for each row that requests one, by request."""
        return {} if self._head is None else self._head.drafted(ready)

    def _pass(
        self, ready: dict[str, Row], made: Mapping[str, HeadDraft], results: Results, started: float
    ) -> list[ScheduledChunk]:
        """Run a pass, and another one as long as a pass only preempts requests, or waits for KV alone."""
        scheduler = self._scheduler
        scheduler.rows = ready | {request: replace(ready[request], draft=each.draft) for request, each in made.items()}
        preempted = scheduler.preempted
        compute = self._engine.engine_core.get_output  # `step` would also process outputs, which are unused
        compute()
        while not scheduler.pieces and (scheduler.preempted > preempted or self._loads(started)):
            preempted = scheduler.preempted
            compute()
        scheduler.rows = {}
        outcome = partial(_outcome, started=started, seconds=time.perf_counter() - started)
        judged, pieces = scheduler.judged, scheduler.pieces
        results |= {ready[request]: outcome(found, made.get(request)) for request, found in judged.items()}
        if self._head is not None:
            self._head.take(ready, pieces, judged, scheduler.states)
        return [_chunk(ready[request], piece, judged.get(request)) for request, piece in pieces.items()]

    def _loads(self, started: float) -> bool:
        """Wait a little for KV that the rows load, if they load any and nothing else has come meanwhile."""
        if not self._scheduler.loads or self.flags.stopped or time.perf_counter() - started > _LOAD_SECONDS:
            return False
        time.sleep(_LOOK_SECONDS)
        return True


def _outcome(judged: Judged, made: HeadDraft | None, started: float, seconds: float) -> Outcome | InternalError:
    if isinstance(judged.result, InternalError):
        return judged.result
    return Outcome(judged.result, started, seconds, judged.offered, made)


def _chunk(row: Row, piece: ComputedPiece, judged: Judged | None) -> ScheduledChunk:
    """Return the part of a row that a pass computed, for the measurement of passes."""
    return ScheduledChunk(row, piece.start, piece.count, 0 if judged is None else judged.offered)
