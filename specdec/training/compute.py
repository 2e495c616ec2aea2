"""Compute settings: device, threads, mixed precision and compilation."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compute:
    """Device of the computation, and whether functions are compiled."""

    device: torch.device
    compiled: bool
    dtype: torch.dtype = torch.bfloat16
    """Data type of the fastest matrix products: bfloat16, or float32 on a CPU without AMX."""

    def autocast(self) -> AbstractContextManager[None]:
        """Context of matrix products in `dtype` with float32 weights."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype is torch.bfloat16)

    def compile(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the function with fused element-wise operations, compiled per input shape if compilation is on."""
        return torch.compile(function, dynamic=False) if self.compiled else function


def choose(device: str, threads: int | None, compiled: bool) -> Compute:
    """Select the device; `auto` uses a GPU if present. Without a C++ compiler, a CPU does not compile."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if threads is not None:
        torch.set_num_threads(threads)
    can_compile = name != "cpu" or shutil.which("g++") is not None
    slow = name == "cpu" and not torch.cpu._is_amx_tile_supported()
    dtype = torch.float32 if slow else torch.bfloat16
    return Compute(device=torch.device(name), compiled=compiled and can_compile, dtype=dtype)
