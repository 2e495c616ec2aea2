"""Creates vLLM's engine in this process from the verifier's settings and the pass-through arguments."""

import hashlib
import json
import os
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from specdec.engine.cpu.product import has_operator
from specdec.engine.loader import ModelFacts
from specdec.errors import ConfigError, ModelRefused
from verifier_service.config import VerifierSettings
from verifier_service.vllm.adapters import adapter_arguments
from verifier_service.vllm.head.arguments import head_share, tapped_layers
from verifier_service.vllm.head.states import TAPS
from verifier_service.vllm.interfaces import PACKED

_NEUTRAL = frozenset({
    "tensor_parallel_size", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens",
    "enforce_eager", "block_size", "distributed_executor_backend", "enable_prefix_caching", "load_format",
    "disable_custom_all_reduce", "compilation_config", "trust_remote_code", "enable_chunked_prefill",
    "kv_transfer_config",
})  # fmt: skip
"""Arguments that change how the model is computed but not which model it is."""
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Defaults for vLLM's environment variables."""


def engine_arguments(settings: VerifierSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine, by their Python names.

    Raises:
        ConfigError: the folder of an adapter has none, or the target cannot run the head.
        ModelRefused: `model.products` requires an operator that is not available, or the head is not served.
    """
    taps, given = tapped_layers(settings), settings.vllm.engine_args
    ours: dict[str, Any] = {
        "model": str(settings.model.path),
        "dtype": settings.model.dtype,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "async_scheduling": False,
        "scheduling_policy": "priority",
        "worker_cls": "verifier_service.vllm.worker.JudgingWorker",
        "scheduler_cls": "verifier_service.vllm.row_scheduler.RowScheduler",
        "kv_transfer_config": {
            "kv_connector": "BlockConnector",
            "kv_connector_module_path": "verifier_service.vllm.kv_connector",
            "kv_role": "kv_both",
        },
        "speculative_config": {
            "method": "custom_class",
            "model": "verifier_service.vllm.worker.NoProposals",
            "num_speculative_tokens": max(settings.gamma_max, 1),
        },
    }
    ours |= adapter_arguments(settings, on_cpu=on_cpu)
    if on_cpu:
        ours |= {"enforce_eager": not settings.model.compile, **_products(settings)}
    if "gpu_memory_utilization" not in given:
        ours["kv_cache_memory_bytes"] = settings.kv_bytes - head_share(settings)
    # vLLM's cache of compiled models distinguishes this value, and models that hand out states differ.
    tapped = {"additional_config": {**given.get("additional_config", {}), TAPS: taps}} if taps else {}
    return ours | given | tapped


def _products(settings: VerifierSettings) -> dict[str, str]:
    """Return the arguments that select the operator of `native` on a CPU; empty if the weights are not float32."""
    model, given = settings.model, settings.vllm.engine_args
    if model.dtype != "float32" or "quantization" in given or _is_quantized(model.path):
        return {}
    return {"quantization": PACKED} if has_operator(model.products) else {}


def _is_quantized(folder: Path) -> bool:
    """Whether the weights of a model are quantized or compressed."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    text = config.get("text_config") or {}
    return any(name in each for name in ("quantization_config", "compression_config") for each in (config, text))


def is_parallel(settings: VerifierSettings) -> bool:
    """Whether the target runs in several worker processes rather than in this one."""
    return int(settings.vllm.engine_args.get("tensor_parallel_size", 1)) > 1


def fingerprint(facts: ModelFacts, settings: VerifierSettings) -> str:
    """Return the fingerprint of the served model: that of the folder, unless an argument or adapter changes tokens."""
    changing = {name: value for name, value in settings.vllm.engine_args.items() if name not in _NEUTRAL}
    if settings.vllm.lora is not None:
        changing["lora"] = str(settings.vllm.lora)
    if not changing:
        return facts.fingerprint
    text = f"{facts.fingerprint} {json.dumps(changing, sort_keys=True, default=str)}"
    return hashlib.sha256(text.encode()).hexdigest()


def open_engine(settings: VerifierSettings) -> Any:
    """Load the target into vLLM's engine. The calling thread owns it.

    Raises:
        ConfigError: an argument is unknown.
        ModelRefused: vLLM cannot load the model.
    """
    parallel = is_parallel(settings)
    wanted = _ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(parallel))}
    os.environ.update({name: value for name, value in wanted.items() if name not in os.environ})
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.abstract import Executor

    from verifier_service.vllm.packed_products import register

    register()
    if current_platform.is_cpu() and not parallel:
        torch.set_num_threads(settings.threads)
    arguments = engine_arguments(settings, on_cpu=current_platform.is_cpu())
    _check_names(arguments, [field.name for field in fields(EngineArgs)])
    try:
        config = EngineArgs(**arguments).create_engine_config()
        return LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ModelRefused(f"{settings.model.path}: vllm does not load it: {first_line}") from error


def _check_names(arguments: dict[str, Any], known: list[str]) -> None:
    for name in arguments:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"vllm.engine_args: vllm has no argument {name!r}{hint}")
