"""Supported version of vLLM, and every part of it that this package uses. Both are checked before anything runs."""

import importlib
import inspect
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from specdec.errors import ConfigError

SERIES = "0.32."
"""Prefix of the supported versions."""

PACKED = "specdec_packed"
"""Name of the quantization that multiplies with the operator of `native`; see `packed_products.py`."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "vllm.engine.arg_utils:EngineArgs": (
        "model", "dtype", "worker_cls", "scheduler_cls", "speculative_config", "scheduling_policy", "async_scheduling",
        "kv_cache_memory_bytes", "enforce_eager", "disable_log_stats", "skip_tokenizer_init", "quantization",
        "enable_lora", "max_loras", "max_lora_rank", "additional_config",
    ),
    "vllm.v1.engine.llm_engine:LLMEngine.__init__": ("vllm_config", "executor_class", "log_stats", "multiprocess_mode"),
    "vllm.v1.engine.llm_engine:LLMEngine.add_request": ("request_id", "prompt", "params", "lora_request", "priority"),
    "vllm.v1.engine.llm_engine:LLMEngine.add_lora": ("lora_request",),
    "vllm.v1.engine.llm_engine:LLMEngine.collective_rpc": ("method",),
    "vllm.v1.engine.llm_engine:LLMEngine.abort_request": ("request_ids", "internal"),
    "vllm.v1.engine.core_client:InprocClient.get_output": (),
    "vllm.v1.executor.abstract:Executor.get_class": ("vllm_config",),
    "vllm.sampling_params:SamplingParams": ("max_tokens", "ignore_eos", "detokenize", "temperature", "output_kind"),
    "vllm.sampling_params:RequestOutputKind": (),
    "vllm.lora.request:LoRARequest": ("lora_name", "lora_int_id", "lora_path"),
    "vllm.model_executor.layers.linear:LinearBase": (),
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod.apply": ("layer", "x", "bias"),
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod.process_weights_after_loading": ("layer",),
    "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead": (),
    "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod.apply": ("layer", "x", "bias"),
    "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod.process_weights_after_loading": (
        "layer",
    ),
    "vllm.model_executor.layers.quantization:register_quantization_config": ("quantization",),
    "vllm.model_executor.layers.quantization.base_config:QuantizationConfig.get_quant_method": ("layer", "prefix"),
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": ("throttle_prefills",),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids": ("draft_token_ids",),
    "vllm.v1.core.sched.scheduler:Scheduler._preempt_request": ("request", "timestamp"),
    "vllm.v1.core.sched.request_queue:PriorityRequestQueue.remove_requests": ("requests",),
    "vllm.v1.core.sched.request_queue:PriorityRequestQueue.add_request": ("request",),
    "vllm.v1.core.sched.output:SchedulerOutput": ("num_scheduled_tokens", "scheduled_spec_decode_tokens"),
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks": ("request",),
    "vllm.v1.core.kv_cache_manager:KVCacheManager.usage": (),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.get_num_new_matched_tokens": (
        "request", "num_computed_tokens",
    ),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.update_state_after_alloc": (
        "request", "blocks", "num_external_tokens",
    ),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.get_finished": ("finished_req_ids",),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.build_connector_worker_meta": (),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.bind_gpu_block_pool": ("gpu_block_pool",),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1.has_pending_push_work": (),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:SupportsHMA.request_finished_all_groups": (
        "request", "block_ids",
    ),
    "vllm.v1.kv_cache_interface:FullAttentionSpec": ("block_size", "sliding_window"),
    "vllm.v1.core.kv_cache_manager:KVCacheManager.cache_blocks": ("request", "num_computed_tokens"),
    "vllm.v1.core.kv_cache_manager:KVCacheBlocks.get_block_ids": (),
    "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": (),
    "vllm.v1.core.block_pool:BlockPool.get_cached_block": ("block_hash", "kv_cache_group_ids"),
    "vllm.v1.core.block_pool:BlockPool.touch": ("blocks",),
    "vllm.v1.core.block_pool:BlockPool.free_blocks": ("ordered_blocks",),
    "vllm.v1.outputs:DraftTokenIds": ("req_ids", "draft_token_ids"),
    "vllm.v1.outputs:SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
    "vllm.v1.outputs:ModelRunnerOutput": ("sampled_token_ids",),
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata": ("draft_token_ids", "num_draft_tokens"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": ("logits", "spec_decode_metadata"),
    "vllm.model_executor.models.interfaces:supports_eagle3": ("model",),
    "vllm.model_executor.models.interfaces:SupportsEagle3.set_aux_hidden_state_layers": ("layers",),
    "vllm.v1.worker.gpu_model_runner:ExecuteModelState": ("scheduler_output", "aux_hidden_states"),
    "vllm.v1.worker.gpu_worker:Worker.init_device": (),
    "vllm.v1.worker.gpu_worker:Worker.load_model": ("load_dummy_weights",),
    "vllm.v1.worker.gpu_worker:Worker.execute_model": ("scheduler_output",),
    "vllm.v1.worker.gpu_worker:Worker.sample_tokens": ("grammar_output",),
    "vllm.v1.worker.gpu_worker:Worker.take_draft_token_ids": (),
}  # fmt: skip
"""Paths of classes and methods, each with the parameters or fields that this package uses."""


def check_version() -> None:
    """Check that the supported version of vLLM is installed.

    Raises:
        ConfigError: vLLM is not installed in this environment, or its version is not supported.
    """
    try:
        found = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise ConfigError("backend: vllm is not installed in this environment: run `make vllm`") from None
    if not found.startswith(SERIES):
        raise ConfigError(f"backend: vllm {found} is not served, only {SERIES}*: run `make vllm`")


def check_interfaces(parts: Mapping[str, tuple[str, ...]] = PARTS) -> None:
    """Check that the installed vLLM has every part in `parts`.

    Raises:
        ConfigError: the version is not supported, or a class, method or parameter is missing; names the first one.
    """
    check_version()
    for path, names in parts.items():
        _check_part(path, names)


def changes(parts: Mapping[str, tuple[str, ...]] = PARTS) -> list[str]:
    """Return a line for each part that the installed vLLM lacks, whatever its version, and a last line with the sum."""
    lines = []
    for path, names in parts.items():
        try:
            _check_part(path, names)
        except ConfigError as error:
            lines.append(str(error))
    version = metadata.version("vllm")
    return [*lines, f"vllm {version}: {len(lines)} of {len(parts)} parts changed; only {SERIES}* is served"]


def _check_part(path: str, names: tuple[str, ...]) -> None:
    known = _names(_find(path), path)
    for name in names:
        if name not in known:
            raise ConfigError(f"backend: this vllm has no {name!r} in {path}")


def _find(path: str) -> Any:
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"backend: this vllm has no {path}: {error}") from error
    return found


def _names(part: Any, path: str) -> set[str]:
    """Return the parameters of a method or the fields of a class."""
    if isinstance(part, property):
        return set()
    fields = getattr(part, "__dataclass_fields__", None) or getattr(part, "__struct_fields__", None)
    if fields:
        return set(fields)
    try:
        return set(inspect.signature(part).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"backend: {path} of this vllm cannot be called: {error}") from error
