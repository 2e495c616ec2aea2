"""Atomic training checkpoints. A kill at any moment leaves either the old or the new checkpoint intact."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

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
