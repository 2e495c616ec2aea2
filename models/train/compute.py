"""Where and how the arithmetic runs: device, threads, mixed precision, compilation."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compute:
    """The device, and whether functions are compiled."""

    device: torch.device
    compiled: bool

    def autocast(self) -> AbstractContextManager[None]:
        """bfloat16 matrix products over float32 weights."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def compile(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The function with its elementwise work fused, one kernel set per input shape; as it is where that is off."""
        return torch.compile(function, dynamic=False) if self.compiled else function


def choose(device: str, threads: int | None, compiled: bool) -> Compute:
    """`auto` takes the GPU when there is one; on the CPU compilation needs a C++ compiler and is left out without."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if threads is not None:
        torch.set_num_threads(threads)
    can_compile = name != "cpu" or shutil.which("g++") is not None
    return Compute(device=torch.device(name), compiled=compiled and can_compile)
