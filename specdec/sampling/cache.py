"""How the host computes a matrix [N, V]: by parts that its cache holds, into memory of large pages."""

import numpy as np
import torch
from torch import Tensor

_NUMBERS = 2**21
"""Numbers of one part, 8 MB in float32: what is made of them on the way stays in the processor's last cache.

Parts of a quarter of that, and of twice as much, take longer
(docs/decisions/0028-verdicts-look-at-each-number-once.md).
"""


def at_once(wide: int) -> int:
    """How many rows of `wide` numbers the cache holds, at least one."""
    return max(1, _NUMBERS // wide)


def parts(count: int, wide: int) -> list[slice]:
    """Slices of `count` rows of `wide` numbers each, for as many rows as the cache holds."""
    size = at_once(wide)
    return [slice(start, start + size) for start in range(0, count, size)]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of the host whose numbers are not set.

    NumPy asks the kernel for large pages, PyTorch does not: the first touch of a new page costs more than the work.
    """
    return torch.from_numpy(np.empty(shape, torch.empty(0, dtype=dtype).numpy().dtype))
