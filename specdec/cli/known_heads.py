"""The draft heads of known models: in the folder of models, or in this checkout. PyTorch is not imported."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.cli import known_models

_SHIPPED = Path(__file__).parents[2] / "models"
"""Folder of this checkout with a head for known models; an installed package has none."""
_CONFIG, _WEIGHTS, _COPIED = "config.json", "model.safetensors", "copied.json"
_USUAL_TAPS = 3


def copied(name: str) -> Path:
    """The folder of a model's head beside the model, where `specdec train head` also writes."""
    return known_models.cache() / f"{name}-head"


def find(name: str) -> Path | None:
    """The folder of a known model's head: the one beside the model, else that of this checkout; None without one."""
    for folder in (copied(name), _SHIPPED / name / "head"):
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


def copy_shipped(name: str) -> Path | None:
    """Copy the head of this checkout beside the model, so that an installed package finds it too.

    A head that was trained there stays. A copy of an earlier one is replaced.

    Returns:
        The folder, or None if nothing was copied.
    """
    shipped, folder = _SHIPPED / name / "head", copied(name)
    if not (shipped / _WEIGHTS).is_file() or _is_newer(folder, shipped):
        return None
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(shipped, folder)
    (folder / _COPIED).write_text(json.dumps({"weights": known_models.sha256(folder / _WEIGHTS)}), encoding="utf-8")
    return folder


def _is_newer(folder: Path, shipped: Path) -> bool:
    """Whether a folder is not an untouched copy of an earlier head, which a copy of the shipped one may replace."""
    if not (folder / _WEIGHTS).is_file():
        return False
    weights = known_models.sha256(folder / _WEIGHTS)
    return weights != _read(folder, _COPIED).get("weights") or weights == known_models.sha256(shipped / _WEIGHTS)


def _read(folder: Path, name: str = _CONFIG) -> Mapping[str, Any]:
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
