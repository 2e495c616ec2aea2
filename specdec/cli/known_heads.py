"""The draft heads of known models: in the folder of models, or in this checkout. PyTorch is not imported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.cli import known_models

_SHIPPED = Path(__file__).parents[2] / "models"
"""Folder of this checkout with a head for known models; an installed package has none."""
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_USUAL_TAPS = 3


def find(name: str) -> Path | None:
    """The folder of a known model's head: the one beside the model, else that of this checkout; None without one."""
    for folder in (known_models.cache() / f"{name}-head", _SHIPPED / name / "head"):
        if (folder / _CONFIG).is_file() and (folder / _WEIGHTS).is_file():
            return folder
    return None


def misfit(head: Path, target: Path) -> str:
    """Why a head was not made for a target, by the sizes in their config.json; empty if it fits."""
    own, of = _read(head), _read(target)
    layer = own.get("transformer_layer_config") or own
    taps = own.get("eagle_aux_hidden_state_layer_ids") or [0] * _USUAL_TAPS
    sizes = {
        "hidden_size": own.get("target_hidden_size") or layer.get("hidden_size"),
        "vocab_size": layer.get("vocab_size"),
    }
    for field, size in sizes.items():
        if size != of.get(field):
            return f"it was made for a target of {field} {size}, and this target has {of.get(field)}"
    layers = int(of.get("num_hidden_layers", 0))
    return f"it reads layer {max(taps)}, and this target has {layers} layers" if max(taps) >= layers else ""


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        content = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
