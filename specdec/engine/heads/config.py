"""The options of a head, read from the config.json of a `speculators`, EAGLE-3/3.1 or Medusa folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PreTrainedConfig

from specdec.engine.folder import read_json
from specdec.errors import ModelRefused

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Architectures of EAGLE-3 folders with a flat configuration."""
_OPTIONS = {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"}
"""Flags that change what a head computes."""
_SHARED = {
    *_OPTIONS, "architectures", "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids",
    "num_aux_hidden_states", "transformers_version",
}  # fmt: skip
_SPECULATORS = {
    *_SHARED, "speculators_model_type", "speculators_config", "speculators_version", "transformer_layer_config",
    "auto_map", "dtype", "torch_dtype", "embed_requires_grad",
}  # fmt: skip
"""Keys that a `speculators` configuration may have."""
_EAGLE = {*_SHARED, "eagle_config", "target_model_type", "auto_map", "modules_to_not_convert"}
"""Keys that a flat configuration may have beside those of a Llama."""
_EAGLE_CONFIG = {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "norm_before_fc"}
_FIXED = {"hidden_act": "silu", "mlp_bias": False, "num_hidden_layers": 1, "pretraining_tp": 1}
"""Options of the layer that have a single supported value."""
_MEDUSA = "MedusaModel"
"""Architecture of Medusa heads in vLLM's layout."""
_MEDUSA_HEADS, _MEDUSA_LAYERS, _MOST_MEDUSA = "medusa_num_heads", "medusa_num_layers", 64
_MEDUSA_KEYS = {
    _MEDUSA_HEADS, _MEDUSA_LAYERS, "num_heads", "num_hidden_layers", "hidden_size", "vocab_size",
    "truncated_vocab_size", "original_lm_head", "logit_scale", "medusa_fc_bias", "base_model_name_or_path", "version",
    "max_paths", "topk", "max_seq_len",
}  # fmt: skip
_SHARED_ROPE = ("dynamic", "longrope")
"""Rotary embeddings that depend on the longest sequence of a pass."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Options of a head. `layer` has the sizes of its one decoder layer, as a Llama."""

    layer: LlamaConfig
    draft_vocab_size: int | None
    """Number of ids that the head can draft; None for all ids of `layer.vocab_size`."""
    target_hidden_size: int
    taps: tuple[int, ...] | None
    """Target layers whose input states the head reads; None for the usual three."""
    norm_before_residual: bool = False
    """Whether the residual is the normed state."""
    norm_before_fc: bool = False
    """Whether one norm applies to all tapped states together before they are fused."""
    fc_norm: bool = False
    """Whether a norm applies to the state of each tap before they are fused."""
    norm_output: bool = False
    """Whether the next draft step reads the normed state."""

    def tapped(self, layers: int) -> tuple[int, ...]:
        """Return the tapped layers for a target of `layers` layers: a low, a middle and a high one unless given."""
        return self.taps if self.taps is not None else (2, layers // 2, layers - 3)


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Options of Medusa heads. Sizes are None where the folder leaves them to the target."""

    heads: int
    layers: int
    """Layers of each head, before its output layer."""
    hidden: int | None = None
    rows: int | None = None
    """Number of rows of the target's embedding."""
    draft_ids: int | None = None
    """Number of ids that the heads can draft; None for all."""
    shared_output: bool = False
    """Whether all heads have the target's output layer."""
    logit_scale: float = 1.0

    def tapped(self, layers: int) -> tuple[int, ...]:
        """Return the place after the last layer of a target of `layers` layers."""
        return (layers,)


def read_config(folder: Path) -> HeadConfig | MedusaConfig:
    """Read the options of a head.

    Raises:
        ModelRefused: the folder has no head, or an option that is not supported; the message names it.
    """
    if not folder.is_dir():
        raise ModelRefused(f"head folder {folder} does not exist")
    content = read_json(folder / "config.json")
    if "speculators_model_type" in content:
        return _speculators(folder, content)
    names = content.get("architectures") or ["none"]
    if _MEDUSA_HEADS in content or names[0] == _MEDUSA:
        return _medusa(folder, content)
    if names[0] not in _ARCHITECTURES:
        raise ModelRefused(
            f"{folder}: architectures is {names[0]}; a head is a `speculators` model, or one of "
            f"{', '.join((*_ARCHITECTURES, _MEDUSA))}"
        )
    return _eagle(folder, content)


def _speculators(folder: Path, content: Mapping[str, Any]) -> HeadConfig:
    kind = content["speculators_model_type"]
    if kind != "eagle3":
        raise ModelRefused(f"{folder}: speculators_model_type is {kind}, supported is eagle3")
    _refuse(folder, content.keys() - _SPECULATORS - _standard())
    layer = content.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ModelRefused(f"{folder}: transformer_layer_config is missing")
    if layer.get("model_type", "llama") != "llama":
        raise ModelRefused(
            f"{folder}: transformer_layer_config.model_type is {layer['model_type']}, supported is llama"
        )
    # vLLM, which serves this format, takes a missing norm_before_residual as true.
    return _config(folder, {"norm_before_residual": True, **content}, layer, "transformer_layer_config.")


def _eagle(folder: Path, content: Mapping[str, Any]) -> HeadConfig:
    _refuse(folder, content.keys() - _EAGLE - _llama())
    own = content.get("eagle_config") or {}
    _refuse(folder, {f"eagle_config.{key}" for key in own.keys() - _EAGLE_CONFIG})
    if not own.get("use_aux_hidden_state", True):
        raise ModelRefused(f"{folder}: eagle_config.use_aux_hidden_state is false, a head must read tapped states")
    layer = {key: value for key, value in content.items() if key in _llama() and key != "architectures"}
    return _config(folder, {**own, **content}, layer, "")


def _medusa(folder: Path, content: Mapping[str, Any]) -> MedusaConfig:
    _refuse(folder, content.keys() - _MEDUSA_KEYS - _standard() - {"torch_dtype"})
    heads, layers = content.get(_MEDUSA_HEADS, content.get("num_heads")), content.get(_MEDUSA_LAYERS)
    layers = content.get("num_hidden_layers", 1) if layers is None else layers
    for name, value in ((_MEDUSA_HEADS, heads), (_MEDUSA_LAYERS, layers)):
        if not isinstance(value, int) or not 1 <= value <= _MOST_MEDUSA:
            raise ModelRefused(f"{folder}: {name} is {value!r}, not a number from 1 to {_MOST_MEDUSA}")
    return MedusaConfig(
        heads=heads,
        layers=layers,
        hidden=content.get("hidden_size"),
        rows=content.get("vocab_size"),
        draft_ids=content.get("truncated_vocab_size"),
        shared_output=bool(content.get("original_lm_head", False)),
        logit_scale=float(content.get("logit_scale", 1.0)),
    )


def _config(folder: Path, options: Mapping[str, Any], layer: Mapping[str, Any], within: str) -> HeadConfig:
    for name, value in _FIXED.items():
        if layer.get(name, value) != value:
            raise ModelRefused(f"{folder}: {within}{name} is {layer[name]}, supported is {value}")
    missing = sorted({"hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"} - layer.keys())
    if missing:
        raise ModelRefused(f"{folder}: {within}{missing[0]} is missing")
    for name in _OPTIONS & options.keys():
        if not isinstance(options[name], bool):
            raise ModelRefused(f"{folder}: {name} is {options[name]!r}, not true or false")
    llama = LlamaConfig(**{**layer, "num_hidden_layers": 1})
    rope = (llama.rope_parameters or {}).get("rope_type")
    if rope in _SHARED_ROPE:
        raise ModelRefused(f"{folder}: {rope} rotary embeddings change with the other sessions of a pass; not served")
    taps = options.get("eagle_aux_hidden_state_layer_ids") or None
    count = options.get("num_aux_hidden_states")
    if count is not None and count != len(taps or (0, 0, 0)):
        raise ModelRefused(f"{folder}: num_aux_hidden_states is {count}, there are {len(taps or (0, 0, 0))} layer ids")
    return HeadConfig(
        layer=llama,
        draft_vocab_size=options.get("draft_vocab_size"),
        target_hidden_size=options.get("target_hidden_size") or llama.hidden_size,
        taps=None if taps is None else tuple(map(int, taps)),
        **{name: options[name] for name in _OPTIONS & options.keys()},
    )


def _refuse(folder: Path, unknown: set[str]) -> None:
    """Refuse options that may change what the head computes."""
    if unknown:
        raise ModelRefused(f"{folder}: config.json has the option {min(unknown)}, which is not supported")


def _standard() -> set[str]:
    """Keys that transformers writes into any configuration."""
    return set(PreTrainedConfig().to_dict())


def _llama() -> set[str]:
    """Keys of a Llama's configuration, in this and in earlier releases of transformers."""
    return {*LlamaConfig().to_dict(), *_standard(), "rope_scaling", "rope_theta", "torch_dtype", "head_dim"}
