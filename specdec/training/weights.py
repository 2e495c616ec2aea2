"""Weights of a drafter in training: its first state, and the folder that it is written to."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from specdec.errors import ConfigError

CausalModel = Any
"""A decoder-only model of transformers, which has no types for it: embeddings, layers, a last norm and a head."""

_SCALED = ("logit_scale", "logits_scaling", "final_logit_softcapping")
"""Configuration values of models whose logits are not the product of hidden states and head."""


def load(folder: Path) -> CausalModel:
    """Load the float32 model of a folder, in evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def export(model: CausalModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights (bfloat16 safetensors), configuration and tokenizer in Hugging Face format."""
    stored = _made(copy.deepcopy(model.config)).to(torch.bfloat16)
    stored.load_state_dict(model.state_dict())
    stored.config.dtype = torch.bfloat16
    stored.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes mode 0600, which another user, such as a container's, cannot read


def initial_drafter(target: CausalModel, layers: int) -> CausalModel:
    """Return the target truncated to its first layers, with its embeddings, last norm and head, in float32."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.dtype = layers, torch.float32
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:layers]
    drafter = _made(config)
    kept = {name: target.state_dict()[name].float() for name in drafter.state_dict()}
    drafter.load_state_dict(kept)
    return drafter


def read_config(target: Path) -> PretrainedConfig:
    """Return the configuration of a target's folder.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(target, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--target {target}: {str(error).splitlines()[0]}") from error
    return config


def check_target(config: PretrainedConfig, layers: int) -> None:
    """Raise ConfigError unless a drafter of `layers` layers can be distilled from a target."""
    known = getattr(config, "num_hidden_layers", 0)
    scaled = [name for name in _SCALED if getattr(config, name, None)]
    if not known or getattr(config, "is_encoder_decoder", False):
        raise ConfigError("--target: only decoder-only models can be distilled")
    if scaled:
        raise ConfigError(f"--target: models with {scaled[0]} cannot be distilled")
    if not 1 <= layers < known:
        raise ConfigError(f"--layers must be from 1 to {known - 1}: the target has {known}, got {layers}")


def head_weight(model: CausalModel, ids: Tensor) -> Tensor:
    """Return the rows of the model's head for the ids, [ids, hidden]."""
    weight: Tensor = model.get_output_embeddings().weight[ids]
    return weight


def _made(config: PretrainedConfig) -> CausalModel:
    return AutoModelForCausalLM.from_config(config)
