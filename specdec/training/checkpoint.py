"""Atomic training checkpoints, and their inputs. A kill leaves either the old or the new checkpoint intact."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from specdec.errors import ConfigError

_SUFFIX = ".partial"


def save(path: Path, model: nn.Module, optimizers: Sequence[Optimizer], step: int) -> None:
    """Write the state after `step` completed steps."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "rng": torch.get_rng_state(),
    }
    write_whole(path, state)


def write_whole(path: Path, content: Any) -> None:
    """Write an object with `torch.save` and sync it to disk before it replaces the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + _SUFFIX)
    with partial.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def restore(path: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> int:
    """Load the checkpoint into the model and optimizers. Return the number of completed steps, or 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    torch.set_rng_state(state["rng"])
    step: int = state["step"]
    return step


def claim(state: Path, target: Path, inputs: Mapping[str, object]) -> None:
    """Record the target and the other inputs of a folder of checkpoints, and create it.

    Raises:
        ConfigError: the folder has checkpoints of other inputs.
    """
    config = hashlib.sha256((target / "config.json").read_bytes()).hexdigest()
    wanted = {"target": str(target.resolve()), "config": config, **inputs}
    file = state / "plan.json"
    if file.exists() and (known := json.loads(file.read_text(encoding="utf-8"))) != wanted:
        other = ", ".join(name for name in wanted if known.get(name) != wanted[name])
        raise ConfigError(f"--state {state} is of a training with another {other}: name another folder")
    state.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(wanted), encoding="utf-8")
