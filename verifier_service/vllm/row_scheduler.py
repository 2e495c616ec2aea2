"""Subclass of vLLM's scheduler that runs only the requests with a row."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from typing_extensions import override
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from specdec.rules.draft import NO_DRAFT
from verifier_service.backends.batch_plan import Row
from verifier_service.vllm.batch import ROWS, VERDICTS, ComputedPiece, Judged, PassRows
from verifier_service.vllm.head.states import STATES, PassStates
from verifier_service.vllm.kv.blocks import SharedBlocks
from verifier_service.vllm.kv_connector import BlockConnector

_NO_STATES = PassStates((), {})


class RowScheduler(Scheduler):
    """Schedules the requests that have a row. The others keep their KV and are held back.

    So a session that waits for its drafts or its reader blocks no other session and gets no token that it did not
    request. If held requests leave no room for any other, the one with the greatest rank is preempted.
    """

    running: list[Any]
    waiting: Any
    kv_holding_waiting: Any
    finished_recving_kv_req_ids: set[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: Mapping[str, Row] = {}
        """Waiting rows, by request id."""
        self.vocab_size = 0
        self.pieces: dict[str, ComputedPiece] = {}
        """Pieces that the last pass computed, by request id."""
        self.judged: Mapping[str, Judged] = {}
        """Verdicts of the last pass, by request id."""
        self.states = _NO_STATES
        """States of the last pass, if a head reads them."""
        self.preempted = 0
        """Number of preemptions."""
        self.blocks: SharedBlocks | None = self.connector.blocks if isinstance(self.connector, BlockConnector) else None
        """Blocks of KV exchanged with the verifier, if our connector is installed."""
        self._drafted = False
        """Whether rows of the last pass had drafts. Requests that were left out still hold theirs."""

    @override
    def schedule(self, throttle_prefills: bool = False) -> Any:
        given = self._take_drafts()
        with self._only_rows() as held:
            output = super().schedule(throttle_prefills)
        self.judged = {}
        self.pieces = {
            request: self._piece(request, count, len(output.scheduled_spec_decode_tokens.get(request, ())))
            for request, count in output.num_scheduled_tokens.items()
        }
        whole = [request for request, piece in self.pieces.items() if self._completes(request, piece)]
        rows = {each: self.rows[each] if each in given else replace(self.rows[each], draft=NO_DRAFT) for each in whole}
        setattr(output, ROWS, PassRows(rows, self.vocab_size))
        if held and self.rows and not self.pieces and not self.loads:
            self._give_up(max(held, key=lambda request: request.priority))
        return output

    @override
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.judged = getattr(model_runner_output, VERDICTS, {})
        self.states = getattr(model_runner_output, STATES, _NO_STATES)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.blocks is not None:
            for request in filter(None, map(self.requests.get, self.pieces)):
                # vLLM would cache blocks that drafts have filled in the next pass only, or never.
                self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
                self.blocks.computed(request)
        return outputs

    @override
    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self.preempted += 1
        super()._preempt_request(request, *args, **kwargs)

    @property
    def free_tokens(self) -> int:
        """Number of tokens that fit the KV blocks not held by running requests."""
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size)

    @property
    def loads(self) -> bool:
        """Whether a request with a row waits for KV that a connector loads. It keeps its memory until then."""
        return any(
            request.request_id in self.rows
            and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            and request.request_id not in self.finished_recving_kv_req_ids
            for request in self.kv_holding_waiting
        )

    def cached(self, request: str) -> int:
        """Return the tokens found in the prefix cache and by the connector for a request that has not run."""
        found = int(self.kv_cache_manager.get_computed_blocks(self.requests[request])[1])
        if self.connector is None:
            return found
        outside, _ = self.connector.get_num_new_matched_tokens(self.requests[request], found)
        return found + max(outside or 0, 0)

    def _take_drafts(self) -> set[str]:
        """Set the drafts of the running requests from their rows, and clear stale drafts of the others.

        Returns:
            Ids of the running requests. vLLM accepts no draft of others, which compute their prompt or recompute it
            after preemption. If it needs a fixed shape, it appends placeholders to them.
        """
        requests = [request.request_id for request in self.running]
        stale, self._drafted = self._drafted, any(row.draft.tokens for row in self.rows.values())
        if stale or self._drafted:
            drafts = [
                list(self.rows[request].draft.tokens[: self.num_spec_tokens]) if request in self.rows else []
                for request in requests
            ]
            self.update_draft_token_ids(DraftTokenIds(requests, drafts))
        return set(requests)

    @contextmanager
    def _only_rows(self) -> Iterator[list[Any]]:
        """Hide the requests without a row inside the context; yield those of them that hold KV."""
        held = [request for request in self.running if request.request_id not in self.rows]
        queues = self.waiting, self.kv_holding_waiting
        waiting = [[request for request in queue if request.request_id not in self.rows] for queue in queues]
        self.running = [request for request in self.running if request.request_id in self.rows]
        for queue, hidden in zip(queues, waiting, strict=True):
            if hidden:
                queue.remove_requests(hidden)
        self.max_num_running_reqs -= len(held)
        try:
            yield held
        finally:
            self.max_num_running_reqs += len(held)
            self.running += held
            for queue, hidden in zip(queues, waiting, strict=True):
                queue.prepend_requests(hidden)

    def _piece(self, request: str, count: int, drafts: int) -> ComputedPiece:
        return ComputedPiece(self.requests[request].num_computed_tokens - count, count - drafts, drafts)

    def _completes(self, request: str, piece: ComputedPiece) -> bool:
        return bool(piece.start + piece.count >= self.requests[request].num_tokens)

    def _give_up(self, request: Any) -> None:
        self.running.remove(request)
        self._preempt_request(request, time.monotonic())
