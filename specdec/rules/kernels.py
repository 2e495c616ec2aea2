"""Whether kernels written in Triton can be used; elsewhere operations of PyTorch do the same."""

from functools import cache

import torch


@cache
def usable(device: torch.device) -> bool:
    """Whether Triton is there and finds the compilers it needs, by one try for a device."""
    if device.type != "cuda":
        return False
    try:
        from specdec.rules.noise_kernel import race

        ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
        race(torch.ones(1, 1, device=device), ids, ids.new_zeros(4, 1))
    except Exception:  # noqa: BLE001 - whatever it is that Triton lacks
        return False
    return True
