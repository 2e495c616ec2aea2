"""Triton's kernels attend like plain PyTorch, to the pages of each sequence and to nothing else."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule
from specdec.engine.batch import PackedBatch
from specdec.engine.cuda.inputs import MOST_NODES, PassInputs, PassShape, flatten, sequence_shares, views
from specdec.engine.cuda.paged_step import Kernels
from specdec.engine.cuda.pages import PageList, PageStore
from specdec.engine.kv.layout import KvLayout
from specdec.trees.tree import Tree
from tests.support.devices import NO_CUDA
from tests.support.kv_backends import PlainKernels

FORKED = Tree((-1, 0, 0, 1, 1, 2, 4))
STRANDS = Tree(tuple(max(-1, node - 2) for node in range(MOST_NODES)))
"""Two interleaved strands with as many nodes as a mask has bits."""
Sequences = Sequence[tuple[int, int, Tree | None]]
RAGGED: Sequences = [(37, 5, None), (100, 7, FORKED), (0, 3, None), (15, 1, None), (16, 1, None), (31, 2, None)]
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -3.0, 0.25, 4.0])


@dataclass(frozen=True)
class Heads:
    """Heads of a layer, and the widths of their keys and values."""

    query: int = 4
    key: int = 2
    key_width: int = 16
    value_width: int = 16


CASES: dict[str, tuple[Heads, AttentionRule, Sequences]] = {
    "grouped": (Heads(), AttentionRule(None, None, None, None), RAGGED),
    "one key head": (Heads(8, 1, 64, 64), AttentionRule(0.2, None, None, None), RAGGED),
    "a head each, odd width": (Heads(4, 4, 40, 40), AttentionRule(None, None, None, None), RAGGED),
    "keys wider than values": (Heads(4, 4, 24, 16), AttentionRule(None, None, None, None), RAGGED),
    "values wider than keys": (Heads(4, 2, 8, 32), AttentionRule(None, None, None, None), RAGGED),
    "window": (Heads(), AttentionRule(None, 9, None, None), RAGGED),
    "window of one": (Heads(), AttentionRule(None, 1, None, None), RAGGED),
    "window beyond the start": (Heads(), AttentionRule(None, 500, None, None), RAGGED),
    "soft cap": (Heads(), AttentionRule(None, None, 0.7, None), RAGGED),
    "sinks": (Heads(8, 2), AttentionRule(None, None, None, SINKS), RAGGED),
    "all together": (Heads(8, 2), AttentionRule(0.3, 20, 2.0, SINKS), RAGGED),
    "as many nodes as bits": (
        Heads(),
        AttentionRule(None, None, None, None),
        [(70, MOST_NODES, STRANDS), (3, 1, None)],
    ),
    "a windowed tree": (Heads(), AttentionRule(None, 9, None, None), [(70, MOST_NODES, STRANDS)]),
    "a chain of more tokens than bits": (
        Heads(),
        AttentionRule(None, None, None, None),
        [(70, 150, None), (3, 7, FORKED), (40, 1, None)],
    ),
    "a windowed chain of more tokens than bits": (Heads(), AttentionRule(None, 50, None, None), [(70, 150, None)]),
    "many keys": (Heads(), AttentionRule(None, None, None, None), [(700, 2, None), (1, 1, None)]),
    "many keys, one window": (Heads(), AttentionRule(None, 100, None, None), [(700, 2, None), (90, 4, None)]),
}
EXACT = {torch.float32: 5e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
DTYPES = [torch.float32, *(pytest.param(each, marks=NO_CUDA) for each in (torch.float16, torch.bfloat16))]
PADDING = 3


class Layer:
    """One layer's pages, filled with the sequences' KV, and the inputs of a pass over them."""

    def __init__(self, heads: Heads, sequences: Sequences, dtype: torch.dtype, kernel_device: torch.device) -> None:
        self.layout = KvLayout(1, heads.key, heads.key_width, heads.value_width, dtype, kernel_device)
        pages = sum(start + count + 16 for start, count, _ in sequences) // 16 + 4
        self.store = PageStore(self.layout, pages * 16 * self.layout.token_bytes)
        for part in (self.store.memory.keys, self.store.memory.values):
            part.normal_(generator=torch.Generator(kernel_device).manual_seed(1))
        self.lists = [self._list(start, count) for start, count, _ in sequences]
        counts = [count for _, count, _ in sequences]
        trees = [tree for *_, tree in sequences]
        positions = [start + depth for start, count, tree in sequences for depth in (tree or Tree.chain(count)).depths]
        batch = PackedBatch([0] * sum(counts), positions, counts, trees, [])
        self.shape = PassShape(sum(counts) + PADDING, len(counts) + 1, max(counts))
        shares = list(sequence_shares(self.lists, batch))
        self.inputs: PassInputs[Tensor] = views(
            flatten(self.shape, self.lists, batch, shares, False).to(kernel_device), self.shape
        )

    def _list(self, start: int, count: int) -> PageList:
        """Return a sequence whose pages are out of order."""
        pages = self.store.open(start + count, b"")
        pages.grow([0] * start)
        self.store.extend(pages, start + count)
        pages.pages = pages.pages[::-1]
        return pages

    def tensor(self, heads: int, width: int, seed: int) -> Tensor:
        """Return [1, heads, T, width], laid out like the output of a projection."""
        kernel_device = self.layout.device
        made = torch.randn(
            1,
            self.shape.tokens,
            heads,
            width,
            device=kernel_device,
            generator=torch.Generator(kernel_device).manual_seed(seed),
        )
        return made.to(self.layout.dtype).transpose(1, 2)

    def run(self, kernels: Kernels, heads: Heads, rule: AttentionRule) -> Tensor:
        """Store new keys and values, then attend."""
        keys, values = self.store.memory.keys[0], self.store.memory.values[0]
        key, value = self.tensor(heads.key, heads.key_width, 2), self.tensor(heads.key, heads.value_width, 3)
        kernels.store(key, value, keys, values, self.inputs.slots)
        query = self.tensor(heads.query, heads.key_width, 4)
        return kernels.attend(query, keys, values, self.inputs, rule, self.shape.queries)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_are_plain_attention(
    case: str, dtype: torch.dtype, triton: Kernels, kernel_device: torch.device
) -> None:
    heads, rule, sequences = CASES[case]
    if rule.sinks is not None:
        rule = rule._replace(sinks=rule.sinks.to(kernel_device, dtype))
    layer, reference = (Layer(heads, sequences, dtype, kernel_device) for _ in range(2))
    got, want = layer.run(triton, heads, rule), reference.run(PlainKernels(), heads, rule)
    assert got.shape == (1, layer.shape.tokens, heads.query, heads.value_width)
    torch.testing.assert_close(got, want, rtol=EXACT[dtype], atol=EXACT[dtype])
    assert torch.equal(layer.store.memory.keys, reference.store.memory.keys)
    assert torch.equal(layer.store.memory.values, reference.store.memory.values)


def test_half_precision_is_summed_in_float32(triton: Kernels, kernel_device: torch.device) -> None:
    test_the_kernels_are_plain_attention("all together", torch.float16, triton, kernel_device)


def test_padding_and_gathered_chunks_are_not_attended_to(triton: Kernels, kernel_device: torch.device) -> None:
    heads = Heads()
    layer = Layer(heads, [(5, 2, None), (4, 3, None)], torch.float32, kernel_device)
    inputs = layer.inputs._replace(owner=layer.inputs.owner.clone(), lengths=layer.inputs.lengths.clone())
    inputs.owner[:2], inputs.lengths[0] = -1, 0
    before = layer.store.memory.keys.clone()
    layer.inputs = inputs
    out = layer.run(triton, heads, AttentionRule(None, None, None, None))
    assert out.isfinite().all()
    assert torch.equal(out[0].flatten(1).any(1).cpu(), torch.tensor([False] * 2 + [True] * 3 + [False] * PADDING))
    changed = (layer.store.memory.keys != before).flatten(3).any(3).flatten().nonzero()[:, 0].tolist()
    assert changed == sorted(inputs.slots[:5].tolist())


def test_what_a_row_computes_does_not_depend_on_its_batch_mates(triton: Kernels, kernel_device: torch.device) -> None:
    heads, rule = Heads(), AttentionRule(None, None, None, None)
    one = Layer(heads, [(37, 3, None), (90, 2, None)], torch.float32, kernel_device)
    other = Layer(heads, [(37, 3, None), (11, 2, None)], torch.float32, kernel_device)
    for layer in (one, other):
        for part in (layer.store.memory.keys, layer.store.memory.values):
            flat = part.flatten(1, 2)
            flat[:, layer.lists[0].slots(0, 40)] = torch.arange(40.0, device=kernel_device)[:, None, None].sin()
    assert torch.equal(one.run(triton, heads, rule)[:, :3], other.run(triton, heads, rule)[:, :3])


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec.engine.cuda import triton_code as code

def compile(kernel, types, given):
    types = [*types.split(), *["constexpr"] * len(given)]
    source = ASTSource(kernel, dict(zip(kernel.arg_names, types, strict=True)), given)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 2, "enable_fp_fusion": True})
    assert b"ELF" in made.asm["cubin"][:4]

ints = "*i64 " * 6
widths = {"key_width": 128, "key_columns": 128, "value_width": 128, "value_columns": 128}
heads = {"heads": 8, "groups": 4, "tile_rows": 64, "page_tokens": 16}
for kind, keys, asked in (("*bf16", 64, False), ("*bf16", 64, True), ("*fp32", 32, True)):
    types = f"{kind} {kind} {kind} *fp32 *fp32 *fp32 {ints} i32 i32 i32 fp32 fp32 i32 i32 i32 i32"
    compile(code.attend, types, {**heads, "tile_keys": keys, **widths, "capped": asked, "windowed": asked})
    of_all = {"heads": 8, "groups": 4, "splits": 32, "value_width": 128, "value_columns": 128}
    compile(code.join, f"*fp32 *fp32 *fp32 *i64 *fp32 {kind} i32", {**of_all, "has_sinks": asked})
    compile(
        code.store,
        f"{kind} {kind} {kind} {kind} *i64 i32 i32 i32 i32 i32 i32",
        {"heads": 8, "key_width": 128, "value_width": 128, "columns": 128},
    )
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_they_compile_for_a_gpu() -> None:
    compiled = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILED],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr
