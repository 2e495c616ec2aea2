"""Arguments of vLLM's engine that follow from a head: its tapped layers, and its share of the memory for KV."""

from pathlib import Path

from transformers import AutoConfig

from specdec.engine.heads.config import MedusaConfig, read_config
from specdec.errors import ConfigError, ModelRefused
from verifier_service.config import VerifierSettings


def tapped_layers(settings: VerifierSettings) -> tuple[int, ...]:
    """Return the layers whose input states the head of the settings reads; empty without a head.

    Raises:
        ConfigError: the target has several ranks, which one head cannot follow.
        ModelRefused: the head is not served, or reads the states of the embedding.
    """
    if settings.head is None:
        return ()
    if int(settings.vllm.engine_args.get("tensor_parallel_size", 1)) > 1:
        raise ConfigError("head: a target with a tensor_parallel_size above 1 runs no head")
    config = read_config(settings.head)
    if isinstance(config, MedusaConfig):
        raise ModelRefused(f"{settings.head}: Medusa heads read the last state, which vllm does not hand out")
    taps = config.tapped(_layer_count(settings.model.path))
    if 0 in taps:  # the first layer of vLLM adds to the embedding in place
        raise ModelRefused(f"{settings.head}: the head reads layer 0, whose input vllm does not hand out")
    return taps


def head_share(settings: VerifierSettings) -> int:
    """Return the part of `kv_bytes` for the head, which is about one more layer of the target; 0 without a head."""
    return 0 if settings.head is None else settings.kv_bytes // (_layer_count(settings.model.path) + 1)


def _layer_count(folder: Path) -> int:
    """Return the number of layers of the target in a folder."""
    return int(AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().num_hidden_layers)
