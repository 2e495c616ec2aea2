"""vLLM's connector of KV blocks of ours: it loads blocks that the verifier received, and copies those it asks for.

A gateway keeps the blocks, and moves them through its verifier, as with the native backend. The verifier checks a value
before the target gets it. So a pass waits neither for the store nor for a copy.
"""

from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.kv_cache_interface import FullAttentionSpec

from verifier_service.vllm.kv.blocks import SharedBlocks
from verifier_service.vllm.kv.copies import BlockCopies
from verifier_service.vllm.kv.messages import Copied, Transfers

_STAGED_SHARE = 4
"""Blocks that no request has loaded take at most this part of the bytes of vLLM's KV, in memory of the host."""


@dataclass
class Begin(KVConnectorMetadata):
    """Copies that begin with a pass."""

    transfers: Transfers


@dataclass
class End(KVConnectorWorkerMetadata):
    """Copies that have ended."""

    copied: Copied

    @override
    def aggregate(self, other: Any) -> "End":
        return End(self.copied.joined(other.copied))


class BlockConnector(KVConnectorBase_V1, SupportsHMA):
    """Connector of vLLM. The scheduler's one has `blocks`, and each worker's one has `copies`.

    Neither has any if some layers need the KV of a part of the tokens only: then no blocks are exchanged.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.blocks: SharedBlocks | None = None
        self.copies: BlockCopies | None = None
        self._copied: Copied | None = None
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self._whole = len(specs) == 1 and isinstance(specs[0], FullAttentionSpec) and not specs[0].sliding_window
        if self._whole and role == KVConnectorRole.SCHEDULER:
            ranks = vllm_config.parallel_config.tensor_parallel_size
            staged = ranks * sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors) // _STAGED_SHARE
            self.blocks = SharedBlocks(specs[0].block_size, kv_cache_config.num_blocks, staged, ranks)

    @property
    @override
    def requires_kv_delivery(self) -> bool:
        return False

    # Scheduler

    @override
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self.blocks is not None:
            self.blocks.bind(gpu_block_pool)

    @override
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = 0 if self.blocks is None else self.blocks.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    @override
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self.blocks is not None and num_external_tokens:
            self.blocks.load(request, blocks.get_block_ids()[0], num_external_tokens)

    @override
    def build_connector_meta(self, scheduler_output: Any) -> Begin:
        return Begin(Transfers() if self.blocks is None else self.blocks.transfers())

    @override
    def update_connector_output(self, connector_output: Any) -> None:
        ended = connector_output.kv_connector_worker_meta
        if self.blocks is not None:
            self.blocks.finished(connector_output.finished_recving or (), ended.copied if ended else None)

    @override
    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        if self.blocks is not None:
            self.blocks.forget(request.request_id)
        return False, None

    @override
    def has_pending_push_work(self) -> bool:
        return self.blocks is not None and self.blocks.busy

    # Worker

    @override
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if not self._whole:
            return
        count = self._kv_cache_config.num_blocks
        caches = [cache.view(count, -1, *cache.shape[1:]) for cache in kv_caches.values()]
        self.copies = BlockCopies(caches, get_tensor_model_parallel_rank())

    @override
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata: Any = self._get_connector_metadata()
        if self.copies is not None:
            self.copies.begin(metadata.transfers)

    @override
    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str]]:
        loaded, self._copied = (set(), None) if self.copies is None else self.copies.take()
        return None, loaded

    @override
    def build_connector_worker_meta(self) -> End | None:
        return End(self._copied) if self._copied else None

    @override
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: a request joins a pass after its load."""

    @override
    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: blocks are copied when a gateway asks for them."""

    @override
    def wait_for_save(self) -> None:
        """Do nothing: blocks that are copied are kept until then."""

    @override
    def shutdown(self) -> None:
        if self.copies is not None:
            self.copies.close()
