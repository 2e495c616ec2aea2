"""Places for an engine in tests: slabs, pages, and pages with kernels and graphs that any machine can run."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.host.backend import open_host
from specdec.engine.kv_backend import Open
from specdec.engine.paged.backend import Paged
from specdec.engine.paged.graphs import Replay
from specdec.engine.paged.inputs import Inputs
from specdec.engine.paged.kernels import Kernels
from specdec.engine.paged.pages import PAGE_TOKENS
from specdec.engine.span import Span
from specdec.rules.tree import ROOT, Tree


class PlainKernels:
    """Kernels on plain PyTorch, told everything by the tensors that the real ones read."""

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                keys.flatten(0, 1)[slot], values.flatten(0, 1)[slot] = key[0, :, token], value[0, :, token]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: Inputs[Tensor], rule: Rule, queries: int
    ) -> Tensor:
        out = query.new_zeros(1, query.shape[2], query.shape[1], values.shape[3])
        starts = inputs.starts.tolist()
        for sequence, length in enumerate(inputs.lengths.tolist()):
            rows = slice(starts[sequence], starts[sequence + 1])
            count = rows.stop - rows.start
            if not length or not count:
                continue
            assert count <= queries
            assert inputs.owner[rows].tolist() == [sequence] * count
            tree = _tree(inputs.bits[rows].tolist())
            assert inputs.positions[rows].tolist() == [length - count + depth for depth in tree.depths]
            span = Span(length - count, count, None if tree.is_chain else tree)
            first, table = span.first_seen(rule.window), int(inputs.tables[sequence])
            pages = inputs.pages[table : table - (-length // PAGE_TOKENS)]
            seen = [part[pages].flatten(0, 1)[first:length].transpose(0, 1)[None] for part in (keys, values)]
            out[:, rows] = span.over(query[:, :, rows], *seen, rule)
        return out


def _tree(bits: list[int]) -> Tree:
    """The tree whose nodes have these bits: a node's parent is the highest other one."""
    above = [(each & ~(1 << node)) & (1 << 64) - 1 for node, each in enumerate(bits)]
    return Tree(tuple(each.bit_length() - 1 if each else ROOT for each in above))


class CallingCapture:
    """Replays by calling, into one tensor that holds nothing of the last time."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        self.captured += 1
        out = work().clone()

        def replay() -> Tensor:
            self.replayed += 1
            out.fill_(torch.nan)
            return out.copy_(work())

        return replay


def graphs(capture: CallingCapture | None = None) -> Paged:
    """Pages whose passes are captured where a bucket fits."""
    return Paged(PlainKernels(), CallingCapture if capture is None else lambda: capture)


PLACES: dict[str, Callable[[], Open]] = {"slabs": lambda: open_host, "pages": Paged, "graphs": graphs}


def triton_kernels(programs: int = 24) -> Kernels:
    """The kernels of the product: compiled where there is a GPU, else in Triton's interpreter, in few programs."""
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU that PyTorch can use, or none at all")
    from specdec.engine.paged.triton_kernels import TritonKernels

    return TritonKernels() if torch.cuda.is_available() else TritonKernels(programs)
