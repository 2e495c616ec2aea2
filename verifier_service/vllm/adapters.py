"""LoRA adapters of the target: arguments of vLLM's engine, fingerprints, and vLLM's own requests for them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from specdec.errors import ConfigError, ModelRefused
from specdec.wire.generation import Adapter
from verifier_service.config import VerifierSettings

_SEQUENCES, _BATCH_TOKENS = 64, 2048
"""Sequence and token limits with adapters. vLLM then requires that a pass has room for every sequence with its longest
draft, which its default limits do not satisfy."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`."""


def adapter_arguments(settings: VerifierSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine for the adapters of the settings; empty without adapters.

    Every adapter has a slot: our scheduler leaves out sequences that vLLM runs, so vLLM could otherwise run more
    adapters than there are slots. On a CPU, vLLM 0.32 computes sequences without an adapter by slot -1, the last one,
    so one slot more is never filled and keeps its zeros.

    Raises:
        ConfigError: a folder has no adapter.
    """
    folders = settings.vllm.adapters
    if not folders:
        return {}
    rank = max(_rank(name, folder) for name, folder in folders.items())
    return {
        "enable_lora": True,
        "max_loras": len(folders) + on_cpu,
        "max_lora_rank": next((each for each in _RANKS if each >= rank), rank),
        "max_num_seqs": _SEQUENCES,
        "max_num_batched_tokens": max(_BATCH_TOKENS, _SEQUENCES * (settings.gamma_max + 1)),
    }


def adapters_of(settings: VerifierSettings, fingerprint: str) -> tuple[Adapter, ...]:
    """Return the adapters that requests may choose; `fingerprint` is that of the model."""
    return tuple(
        Adapter(name, _fingerprint(f"{fingerprint} {name}", folder))
        for name, folder in settings.vllm.lora_modules.items()
    )


def load_adapters(engine: Any, settings: VerifierSettings) -> dict[str, Any]:
    """Load the adapters into vLLM's engine, and return its request for each by name.

    Raises:
        ModelRefused: vLLM cannot load an adapter.
    """
    from vllm.lora.request import LoRARequest

    requests: dict[str, Any] = {}
    for number, (name, folder) in enumerate(settings.vllm.adapters.items(), 1):
        request = LoRARequest(lora_name=name or folder.name, lora_int_id=number, lora_path=str(folder))
        try:
            engine.add_lora(request)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            raise ModelRefused(f"{_setting(name)}: vllm does not load {folder}: {first_line}") from error
        requests[name] = request
    return requests


def _setting(name: str) -> str:
    return f"vllm.lora_modules.{name}" if name else "vllm.lora"


def _rank(name: str, folder: Path) -> int:
    try:
        return int(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{_setting(name)}: {folder} has no adapter_config.json with a rank: {error}") from error


def _fingerprint(names: str, folder: Path) -> str:
    """Return a fingerprint of `names` and the content of the adapter in `folder`."""
    digest = hashlib.sha256(f"{names}\n".encode())
    for file in sorted(folder.glob("adapter_*")):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
