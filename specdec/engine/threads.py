"""How many of PyTorch's threads a pass has."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

WIDE = 64
"""Tokens from which a pass on a processor waits for its arithmetic, and is faster on several; one over few tokens waits
for memory, and for the threads to begin and to end in each of its products."""


@contextmanager
def threads_of(tokens: int, wide: int | None) -> Iterator[None]:
    """Give this thread's pass over so many tokens `wide` threads until the block ends, where it is wide.

    Args:
        wide: None leaves the number as it is.
    """
    before = torch.get_num_threads()
    if wide is None or wide == before or tokens < WIDE:
        yield
        return
    torch.set_num_threads(wide)
    try:
        yield
    finally:
        torch.set_num_threads(before)
