"""Tiny Medusa heads in each layout of checkpoints, and the same heads in plain operations."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from tests.support.tiny_heads import HIDDEN, draft_ids

Layout = Literal["medusa", "vllm"]
FILES = {"medusa": "medusa_lm_head.safetensors", "vllm": "model.safetensors"}


def make_tiny_medusa(
    folder: Path,
    layout: Layout = "medusa",
    *,
    heads: int = 3,
    layers: int = 1,
    vocab: int = 320,
    draft_vocab: int | None = None,
    ids: Tensor | None = None,
    shared: bool = False,
    spread: float = 0.3,
    seed: int = 5,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write heads with random weights and return their folder; arguments as for `make_tiny_head`.

    Args:
        folder: target folder, created if missing.
        layout: names of the weights and of the options.
        heads: number of heads.
        layers: layers of each head.
        vocab: rows of the target's embedding.
        draft_vocab: number of draft ids; None for all.
        ids: draft ids; None for `draft_ids`.
        shared: whether all heads have the target's output layer, which is then not in the folder.
        spread: standard deviation of the weights.
        seed: random seed of the weights.
        config: further keys of the configuration, or changed ones.
    """
    rng, weights = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for head in range(heads):
        for layer in range(layers):
            name = f"{head}.{layer}.linear" if layout == "medusa" else f"blocks.{head}.layers.{layer}"
            weights[f"{name}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=rng) * spread
            if layout == "medusa":
                weights[f"{name}.bias"] = torch.randn(HIDDEN, generator=rng) * spread
        if not shared:
            name = f"{head}.{layers}" if layout == "medusa" else f"lm_heads.{head}"
            weights[f"{name}.weight"] = torch.randn(draft_vocab or vocab, HIDDEN, generator=rng) * spread
    content: dict[str, Any] = {"medusa_num_heads": heads, "medusa_num_layers": layers}
    if layout == "vllm":
        sizes = {"hidden_size": HIDDEN, "vocab_size": vocab, "truncated_vocab_size": draft_vocab or vocab}
        options = {"architectures": ["MedusaModel"], "model_type": "medusa", "original_lm_head": shared}
        content = {"num_heads": heads, "num_hidden_layers": layers, **sizes, **options}
    if draft_vocab is not None:
        weights["token_map"] = draft_ids(draft_vocab, vocab) if ids is None else ids
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content | (config or {})))
    save_file(weights, folder / FILES[layout])
    return folder


def plain_logits(folder: Path, layout: Layout, state: Tensor, output: Tensor, *, heads: int, layers: int) -> Tensor:
    """Return the logits of each head [heads, vocab] for the target's last state [hidden].

    `output` [vocab, hidden] is the target's output layer, for heads without output layers.
    """
    weights, found = load_file(folder / FILES[layout]), list[Tensor]()
    for head in range(heads):
        own = state
        for layer in range(layers):
            name = f"{head}.{layer}.linear" if layout == "medusa" else f"blocks.{head}.layers.{layer}"
            bias = weights.get(f"{name}.bias", torch.zeros(HIDDEN))
            own = own + silu(weights[f"{name}.weight"] @ own + bias)
        last = f"{head}.{layers}.weight" if layout == "medusa" else f"lm_heads.{head}.weight"
        ids = weights.get("token_map")
        rows = weights[last] if last in weights else output if ids is None else output[ids]
        whole = torch.full((len(output),), -torch.inf)
        whole[torch.arange(len(output)) if ids is None else ids] = rows @ own
        found.append(whole)
    return torch.stack(found)
