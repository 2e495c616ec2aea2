"""Random LoRA adapters in the layout of `peft`, and models with an adapter merged into their weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK = 4
ADAPTED = ("q_proj", "v_proj")
_SCALE = 2.0


def write_adapter(target: Path, adapter: Path, merged: Path, seed: int = 7, size: float = 1 / 8) -> None:
    """Write an adapter of random weights, and the target with the adapter merged in.

    Args:
        target: folder of the model.
        adapter: new folder of the adapter.
        merged: new folder of the merged model.
        seed: random seed of the weights.
        size: standard deviation of the second factor's weights.
    """
    generator = torch.Generator().manual_seed(seed)
    weights, low = load_file(target / "model.safetensors"), dict[str, torch.Tensor]()
    weights = {name: weight.float() for name, weight in weights.items()}
    for name in [name for name in weights if name.split(".")[-2] in ADAPTED]:
        rows, columns = weights[name].shape
        down = torch.randn(RANK, columns, generator=generator) / columns**0.5
        up = torch.randn(rows, RANK, generator=generator) * size
        weights[name] = weights[name] + _SCALE * up @ down
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        low |= {f"{stem}.lora_A.weight": down.contiguous(), f"{stem}.lora_B.weight": up.contiguous()}
    copy_model(target, merged, {"dtype": "float32"})
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    adapter.mkdir()
    save_file(low, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": _SCALE * RANK, "target_modules": ADAPTED, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def copy_model(target: Path, folder: Path, changed: Mapping[str, Any]) -> None:
    """Copy a model without its weights, with changes of its configuration."""
    folder.mkdir()
    for file in target.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changed), encoding="utf-8")
