"""Process a matrix [N, V] on the host in parts that fit its cache, with memory in large pages."""

import numpy as np
import torch
from torch import Tensor

_NUMBERS = 2**21
"""Numbers in one part, 8 MB in float32, so that intermediate results stay in the processor's last-level cache
(docs/decisions/0028-verdicts-read-each-logit-once.md)."""


def at_once(wide: int) -> int:
    """Number of rows of `wide` numbers that fit in the cache, at least 1."""
    return max(1, _NUMBERS // wide)


def parts(count: int, wide: int) -> list[slice]:
    """Split `count` rows of `wide` numbers into slices that fit in the cache."""
    size = at_once(wide)
    return [slice(start, start + size) for start in range(0, count, size)]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on the host.

    NumPy asks the kernel for large pages; PyTorch does not, and page faults then cost more than the computation.
    """
    return torch.from_numpy(np.empty(shape, torch.empty(0, dtype=dtype).numpy().dtype))
