"""KV backends for engine tests: slabs, pages, and pages with kernels and graphs that run on any machine."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.engine import NativeEngine
from specdec.engine.attention import AttentionRule
from specdec.engine.cpu.cpp_library import LibraryMissing
from specdec.engine.cpu.operator import host_backend, load_attention
from specdec.engine.cpu.slabs import open_host_backend
from specdec.engine.cpu.span import AttentionSpan
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.cuda.graphs import Replay
from specdec.engine.cuda.inputs import PassInputs
from specdec.engine.cuda.paged_step import Kernels
from specdec.engine.cuda.pages import PAGE_TOKENS
from specdec.engine.kv.backend import OpenKvBackend
from specdec.trees.tree import ROOT, Tree


class PlainKernels:
    """Kernels in plain PyTorch that read the same tensors as the real ones."""

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                keys.flatten(0, 1)[slot], values.flatten(0, 1)[slot] = key[0, :, token], value[0, :, token]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, inputs: PassInputs[Tensor], rule: AttentionRule, queries: int
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
            bits = inputs.bits[rows].tolist()
            tree = _tree(bits) if any(bits) else Tree.chain(count)
            assert inputs.positions[rows].tolist() == [length - count + depth for depth in tree.depths]
            span = AttentionSpan(length - count, count, None if tree.is_chain else tree)
            first, table = span.first_seen(rule.window), int(inputs.tables[sequence])
            pages = inputs.pages[table : table - (-length // PAGE_TOKENS)]
            seen = [part[pages].flatten(0, 1)[first:length].transpose(0, 1)[None] for part in (keys, values)]
            out[:, rows] = span.over(query[:, :, rows], *seen, rule)
        return out


def _tree(bits: list[int]) -> Tree:
    """Return the tree that these bits describe: a node's parent is the highest other bit."""
    above = [(each & ~(1 << node)) & (1 << 64) - 1 for node, each in enumerate(bits)]
    return Tree(tuple(each.bit_length() - 1 if each else ROOT for each in above))


class CallingCapture:
    """A capture whose replay calls the work again. Its one output tensor is cleared before every replay."""

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


def graphs(capture: CallingCapture | None = None) -> PagedBackend:
    """Build pages whose passes are captured if a bucket fits."""
    return PagedBackend(PlainKernels(), CallingCapture if capture is None else lambda: capture)


def operator() -> None:
    """Attend with the host's operator from now on. Skip the test without a C++ compiler."""
    try:
        load_attention()
    except LibraryMissing as missing:
        pytest.skip(str(missing))


def slabs_with_operator() -> OpenKvBackend:
    """Build slabs whose passes attend to all sessions at once. Skip the test without a C++ compiler."""
    operator()
    return host_backend("operator")


KV_BACKENDS: dict[str, Callable[[], OpenKvBackend]] = {
    "slabs": lambda: open_host_backend,
    "operator": slabs_with_operator,
    "pages": PagedBackend,
    "graphs": graphs,
}
"""KV backends that run on every machine, by name."""


def triton_kernels(programs: int = 24) -> Kernels:
    """Return the product's kernels: compiled on a GPU, otherwise in Triton's interpreter with few programs."""
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU that PyTorch can use, or none at all")
    from specdec.engine.cuda.triton_kernels import TritonKernels

    return TritonKernels() if torch.cuda.is_available() else TritonKernels(programs)


def session_kv(engine: NativeEngine, session: str, start: int, stop: int) -> Tensor:
    """Return the keys and values of tokens start..stop-1 of one session, on the host. The product exports by tokens."""
    return engine._pool[session].read(start, stop).cpu()
