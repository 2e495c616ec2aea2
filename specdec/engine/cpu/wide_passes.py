"""Run passes over many tokens with more threads than other passes."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Generic

import torch
from torch import Tensor

from specdec.engine.batch import PackedBatch
from specdec.engine.kv.backend import RunPass
from specdec.engine.kv.store import S

WIDE = 6
"""Tokens from which a pass is bound by arithmetic, and faster on several processors; shorter passes are bound by
memory. Measured with AVX2."""
_UNEVEN = 1.3
"""Largest ratio of the tokens of the largest part to the mean of all parts for which a pass is run in parts."""


class WidePasses(Generic[S]):
    """A backend's passes, with several threads for passes over many tokens.

    One thread for each part of the sessions is faster than several threads in each product. Threads in a product wait
    for each other after every product, and for long when another process occupies the processor of one. A pass that is
    mostly the prompt of one session cannot be split into parts.
    """

    def __init__(self, run: RunPass[S], threads: int | None, *, apart: bool) -> None:
        """Run the passes of a backend.

        Args:
            run: runs a pass with the current number of PyTorch threads.
            threads: number of threads for passes over `WIDE` tokens or more; None does not change it.
            apart: whether passes in several threads run in parallel, without waiting for the interpreter.
        """
        self._run = run
        self._threads = threads
        own = torch.get_num_threads()
        self._parts = max(threads // own, 1) if threads is not None and apart else 1
        self._others = ThreadPoolExecutor(max(self._parts - 1, 1), "part")
        """Runs all parts except the first."""

    def __call__(self, sequences: Sequence[S], batch: PackedBatch) -> Tensor:
        """Run a pass, as in `RunPass`."""
        total = len(batch.tokens)
        if self._threads is None or total < WIDE:
            return self._run(sequences, batch)
        parts = balanced(batch.counts, self._parts)
        largest = max(sum(batch.counts[chunk] for chunk in part) for part in parts)
        if self._parts > 1 and self._parts * largest <= _UNEVEN * total:
            return self._run_parts(sequences, batch, parts)
        with _threads(self._threads):
            return self._run(sequences, batch)

    def _run_parts(self, sequences: Sequence[S], batch: PackedBatch, parts: Sequence[Sequence[int]]) -> Tensor:
        batches, rows = zip(*map(batch.part, parts), strict=True)
        runs = [([sequences[chunk] for chunk in part], own) for part, own in zip(parts, batches, strict=True)]
        others = [self._others.submit(self._run, *run) for run in runs[1:]]
        try:
            found = [self._run(*runs[0])]
        finally:
            wait(others)  # they write to the sequences
        found += [each.result() for each in others]
        logits = found[0].new_empty(len(batch.keep), found[0].shape[1])
        for own_rows, own in zip(rows, found, strict=True):
            logits[own_rows] = own
        return logits


def balanced(counts: Sequence[int], parts: int) -> list[list[int]]:
    """Assign chunks of the given token counts, the largest first, each to the part with the fewest tokens.

    Returns:
        The indices of each part's chunks, ascending.
    """
    dealt, loads = [list[int]() for _ in range(parts)], [0] * parts
    for chunk in sorted(range(len(counts)), key=counts.__getitem__, reverse=True):
        part = loads.index(min(loads))
        dealt[part].append(chunk)
        loads[part] += counts[chunk]
    return [sorted(part) for part in dealt]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch threads until the block ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
