"""Passes over many tokens, which have more threads than others."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Generic

import torch
from torch import Tensor

from specdec.engine.batch import PackedBatch
from specdec.engine.kv.backend import RunPass
from specdec.engine.kv.store import S

WIDE = 64
"""Tokens from which a pass on a processor waits for its arithmetic, and is faster on several; one over few tokens waits
for memory."""
_UNEVEN = 1.3
"""Tokens of the largest part of a pass over the mean of its parts, above which it is not run in parts."""


class WidePasses(Generic[S]):
    """A backend's passes, of which those over many tokens have several threads.

    A thread for each part of the sessions is faster than several threads in each product, which wait for each other
    behind all of them, and for a long time wherever another process has one's processor. A pass that is mostly one
    session's prompt has no such parts.
    """

    def __init__(self, run: RunPass[S], threads: int | None, *, apart: bool) -> None:
        """Run the passes of a backend.

        Args:
            run: runs a pass with the threads of PyTorch that this process has now.
            threads: how many passes over `WIDE` tokens or more have; None is no other number.
            apart: whether passes in several threads do not wait for each other, as they do for the interpreter.
        """
        self._run = run
        self._threads = threads
        own = torch.get_num_threads()
        self._parts = max(threads // own, 1) if threads is not None and apart else 1
        self._others = ThreadPoolExecutor(max(self._parts - 1, 1), "part")
        """Run all parts but the first, each with as many threads."""

    def __call__(self, sequences: Sequence[S], batch: PackedBatch) -> Tensor:
        """Run a pass, as `RunPass`."""
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
    """Deal out chunks of so many tokens, the largest first, each to the part with the fewest tokens.

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
    """Give this thread so many of PyTorch's threads until the block ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
