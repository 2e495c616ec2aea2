"""Padding of a Llama model to a larger one that computes the same. It costs as much as the larger model.

Added weights are random wherever their result is multiplied by zero, so that no processor skips any work.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a padded model, with an unchanged head width."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


def pad_model(folder: Path, to: Path, size: Size, device: torch.device) -> None:
    """Write the model of `folder`, with tied embeddings, padded to `size`, in bfloat16.

    Args:
        folder: the folder of a Llama model.
        to: the output folder, created if missing.
        size: at least the model's in every dimension.
        device: device on which the tensors are made.
    """
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(_WEIGHTS), dirs_exist_ok=True)
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    padded = _Padded(config, size, load_file(folder / _WEIGHTS), device)
    save_file(padded.tensors(), to / _WEIGHTS, {"format": "pt"})
    (to / _CONFIG).write_text(json.dumps(config | padded.config(), indent=2), encoding="utf-8")


class _Padded:
    def __init__(
        self, config: Mapping[str, Any], size: Size, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self._old, self._size, self._weights, self._device = config, size, weights, device
        self._thinner = config["hidden_size"] / size.hidden
        self._generator = torch.Generator(device).manual_seed(0)

    def config(self) -> dict[str, Any]:
        """Fields of the configuration that change."""
        size = self._size
        return {
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "vocab_size": size.vocabulary,
            # added zeros reduce the mean of squares by this factor
            "rms_norm_eps": self._old["rms_norm_eps"] * self._thinner,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights by name. Layers that the small model does not have add nothing."""
        size, width = self._size, self._old["head_dim"]
        queries, keys, hidden, inner = size.heads * width, size.kv_heads * width, size.hidden, size.intermediate
        made = {
            "model.embed_tokens.weight": self._matrix("model.embed_tokens.weight", (size.vocabulary, hidden), out=True),
            "model.norm.weight": self._norm("model.norm.weight"),
        }
        for layer in range(size.layers):
            at = f"model.layers.{layer}."
            made |= {
                at + "input_layernorm.weight": self._norm(at + "input_layernorm.weight"),
                at + "post_attention_layernorm.weight": self._norm(at + "post_attention_layernorm.weight"),
                at + "self_attn.q_proj.weight": self._heads(at + "self_attn.q_proj.weight", (queries, hidden), 0),
                at + "self_attn.k_proj.weight": self._matrix(at + "self_attn.k_proj.weight", (keys, hidden)),
                at + "self_attn.v_proj.weight": self._matrix(at + "self_attn.v_proj.weight", (keys, hidden)),
                at + "self_attn.o_proj.weight": self._heads(at + "self_attn.o_proj.weight", (hidden, queries), 1),
                at + "mlp.gate_proj.weight": self._matrix(at + "mlp.gate_proj.weight", (inner, hidden)),
                at + "mlp.up_proj.weight": self._matrix(at + "mlp.up_proj.weight", (inner, hidden)),
                at + "mlp.down_proj.weight": self._matrix(at + "mlp.down_proj.weight", (hidden, inner), out=True),
            }
        return made

    def _matrix(self, name: str, shape: tuple[int, int], *, out: bool = False) -> Tensor:
        """Return a matrix with the small one in its corner.

        With `out`, the added part is zero because it feeds the states.
        """
        made = self._new(shape, out=out)
        if (old := self._weights.get(name)) is not None:
            made[: old.shape[0], : old.shape[1]] = old.to(made)
        return made.cpu()

    def _heads(self, name: str, shape: tuple[int, int], axis: int) -> Tensor:
        """Return a matrix with query heads along `axis`. Each query head keeps its key head."""
        made = self._new(shape, out=axis == 1)
        if (old := self._weights.get(name)) is not None:
            heads, width, groups = self._old["num_attention_heads"], self._old["head_dim"], self._size.kv_heads
            group, wider = heads // self._old["num_key_value_heads"], self._size.heads // groups
            for head, part in enumerate(torch.split(old.to(made), width, axis)):
                first = (head // group * wider + head % group) * width
                made.narrow(axis, first, width).narrow(1 - axis, 0, part.shape[1 - axis]).copy_(part)
        return made.cpu()

    def _norm(self, name: str) -> Tensor:
        """Return the weights of a norm, reduced to compensate for zeros in the mean."""
        made = torch.ones(self._size.hidden, dtype=torch.bfloat16)
        if (old := self._weights.get(name)) is not None:
            made[: old.shape[0]] = old * self._thinner**0.5
        return made

    def _new(self, shape: tuple[int, int], *, out: bool) -> Tensor:
        if out:
            return torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        made = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return made.normal_(std=_NOISE, generator=self._generator)
