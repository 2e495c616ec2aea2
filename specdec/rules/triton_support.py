"""Whether kernels written in Triton run on a device; where they do not, operations of PyTorch do the same work."""

from functools import cache

import torch


@cache
def triton_works(device: torch.device) -> bool:
    """Whether Triton is installed and finds the compilers it needs, tried once for each device."""
    if device.type != "cuda":
        return False
    try:
        from specdec.rules.noise_kernel import race

        ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
        race(torch.ones(1, 1, device=device), ids, ids.new_zeros(4, 1))
    except Exception:  # noqa: BLE001 - Triton fails in many ways when something it needs is missing
        return False
    return True
