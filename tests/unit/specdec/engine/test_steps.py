"""Attention of a packed pass equals the textbook formula for each session, in slabs and in pages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, AttentionStep
from specdec.engine.batch import PackedBatch
from specdec.engine.cpu.slabs import HostStep, SlabSpan, SlabStore
from specdec.engine.cpu.span import FOLD_LIMIT, tail_mask, tree_mask
from specdec.engine.cuda.inputs import PassShape, SequenceShare, flatten, sequence_shares, views
from specdec.engine.cuda.paged_step import PagedSpan, PagedStep
from specdec.engine.cuda.pages import PageStore
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.store import KvStore, S
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.trees.tree import Tree
from tests.support.kv_backends import PlainKernels

KERNEL_LIMIT = 6
"""Maximum number of tokens of a chunk for the kernels. Longer chunks of a pass are gathered."""
QUERY_HEADS, HEADS, KEY_WIDTH, VALUE_WIDTH, LAYERS = 6, 2, 8, 4, 2
LAYOUT = KvLayout(LAYERS, HEADS, KEY_WIDTH, VALUE_WIDTH, torch.float64, torch.device("cpu"))

RULES = {
    "plain": AttentionRule(None, None, None, None),
    "scaled": AttentionRule(0.3, None, None, None),
    "window": AttentionRule(None, 4, None, None),
    "softcap": AttentionRule(None, None, 0.7, None),
    "softcap and window": AttentionRule(0.5, 4, 0.7, None),
    "sinks": AttentionRule(None, None, None, torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -3.0], dtype=torch.float64)),
    "sinks and window": AttentionRule(None, 4, None, torch.linspace(-1, 1, QUERY_HEADS, dtype=torch.float64)),
}
LENGTHS = {
    "one fresh": [(0, 5)],
    "one token": [(7, 1)],
    "one draft": [(7, 4)],
    "long prefill": [(0, FOLD_LIMIT + 3)],
    "second chunk of a long prefill": [(9, FOLD_LIMIT + 3)],
    "ragged": [(7, 4), (0, 6), (12, 1), (3, FOLD_LIMIT + 1)],
}


class Session:
    """Random queries, keys and values of a whole sequence, whose first `start` tokens are already computed."""

    def __init__(self, start: int, count: int, tree: Tree | None = None) -> None:
        total = start + count
        self.start, self.count, self.tree = start, count, tree
        self.query = torch.randn(QUERY_HEADS, total, KEY_WIDTH, dtype=torch.float64)
        self.key = torch.randn(LAYERS, HEADS, total, KEY_WIDTH, dtype=torch.float64)
        self.value = torch.randn(LAYERS, HEADS, total, VALUE_WIDTH, dtype=torch.float64)

    def hold(self, store: KvStore[S]) -> S:
        """Store the first tokens, and reserve room for the others."""
        sequence = store.open(self.start + self.count + 2, b"")
        store.extend(sequence, self.start)
        sequence.append([0] * self.start, torch.cat([self.key, self.value], -1)[:, :, : self.start])
        store.extend(sequence, self.start + self.count)
        return sequence

    def expected(self, layer: int, rule: AttentionRule) -> Tensor:
        """Return [count, query heads, value width] by the formula, one query and one head at a time."""
        rows = range(self.start, self.start + self.count)
        return torch.stack(
            [torch.stack([self._one(layer, head, row, rule) for head in range(QUERY_HEADS)]) for row in rows]
        )

    def _one(self, layer: int, head: int, row: int, rule: AttentionRule) -> Tensor:
        shared = head // (QUERY_HEADS // HEADS)
        seen = self.lineage(row)[-rule.window if rule.window else None :]
        scale = KEY_WIDTH**-0.5 if rule.scale is None else rule.scale
        scores = self.key[layer, shared, seen] @ self.query[head, row] * scale
        if rule.softcap is not None:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        weights = scores.exp()
        total = weights.sum() + (0 if rule.sinks is None else rule.sinks[head].exp())
        return (weights / total) @ self.value[layer, shared, seen]

    @property
    def depths(self) -> Sequence[int]:
        """Depths of the new tokens, counted from `start`."""
        return range(self.count) if self.tree is None else self.tree.depths

    def lineage(self, row: int) -> list[int]:
        """Return the tokens up to and including `row`."""
        if self.tree is None or row < self.start:
            return list(range(row + 1))
        parent = self.tree.parents[row - self.start]
        return [*self.lineage(self.start + parent), row] if parent >= 0 else [*range(self.start), row]


def over_slabs(sessions: Sequence[Session]) -> AttentionStep:
    store = SlabStore(LAYOUT, 1 << 30)
    return HostStep([SlabSpan(session.hold(store), session.count, session.tree) for session in sessions])


def over_pages(sessions: Sequence[Session], kernels: PlainKernels | None = None) -> AttentionStep:
    """Return a step over pages filled with NaN where nothing was written. Chunks too long for kernels are gathered."""
    store = PageStore(LAYOUT, 64 * BLOCK_TOKENS * LAYOUT.token_bytes)
    for part in (store.memory.keys, store.memory.values):
        part.fill_(torch.nan)
    lists = [session.hold(store) for session in sessions]
    counts, trees = [session.count for session in sessions], [session.tree for session in sessions]
    positions = [session.start + depth for session in sessions for depth in session.depths]
    batch = PackedBatch([0] * sum(counts), positions, counts, trees, [])
    shares = list(sequence_shares(lists, batch))
    shape = PassShape(sum(counts), len(counts), 0 if kernels is None else KERNEL_LIMIT)
    inputs = views(flatten(shape, lists, batch, shares, False), shape)
    gathered = [PagedSpan(store.memory, inputs.pages, share) for share in shares if share.count > shape.queries]
    return PagedStep(store.memory, inputs, shape, kernels, gathered)


STEPS: dict[str, Callable[[Sequence[Session]], AttentionStep]] = {
    "slabs": over_slabs,
    "pages": over_pages,
    "pages with kernels": lambda sessions: over_pages(sessions, PlainKernels()),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_session_attends_to_its_own_past_only(
    make: Callable[[Sequence[Session]], AttentionStep], rule: AttentionRule, lengths: list[tuple[int, int]]
) -> None:
    torch.manual_seed(0)
    check([Session(start, count) for start, count in lengths], rule, make)


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("start", [0, 2, 19])
def test_a_node_attends_to_the_context_and_its_own_lineage_only(
    make: Callable[[Sequence[Session]], AttentionStep], rule: AttentionRule, start: int
) -> None:
    torch.manual_seed(0)
    forked, wide = Tree((-1, 0, 0, 2, 1, 3, 5, -1)), Tree((-1, *[node // 2 for node in range(FOLD_LIMIT + 3)]))
    sessions = [Session(start, len(tree), tree) for tree in (forked, wide)]
    check(sessions, rule, make)
    check([sessions[0], Session(9, 4), sessions[1], Session(0, 6), Session(3, 1)], rule, make)


def check(sessions: list[Session], rule: AttentionRule, make: Callable[[Sequence[Session]], AttentionStep]) -> None:
    step = make(sessions)
    for layer in range(LAYERS):
        got = step.attend(
            layer,
            torch.cat([s.query[None, :, s.start :] for s in sessions], 2),
            torch.cat([s.key[layer, None, :, s.start :] for s in sessions], 2),
            torch.cat([s.value[layer, None, :, s.start :] for s in sessions], 2),
            rule,
        )
        want = torch.cat([session.expected(layer, rule) for session in sessions])
        # Softmax with sinks or a soft cap is computed in float32, as the models themselves do.
        torch.testing.assert_close(got[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("store", [SlabStore, PageStore])
def test_what_is_appended_piece_by_piece_is_read_whole(store: type[SlabStore] | type[PageStore]) -> None:
    torch.manual_seed(0)
    memory: KvStore[Any] = store(LAYOUT, 1 << 20)
    session = Session(0, 20)
    sequence = memory.open(20, b"")
    for start, end in pairwise([0, 4, 5, 9, 16, 20]):
        memory.extend(sequence, end)
        sequence.append([0] * (end - start), torch.cat([session.key, session.value], -1)[:, :, start:end])
        assert torch.equal(sequence.read(0, end), torch.cat([session.key, session.value], -1)[:, :, :end])


def test_pages_and_spans_stay_on_their_device(device: torch.device) -> None:
    torch.manual_seed(0)
    session = Session(21, 5)
    store = PageStore(replace(LAYOUT, device=device), 64 * BLOCK_TOKENS * LAYOUT.token_bytes)
    pages = torch.tensor(session.hold(store).pages, device=device)
    kv = torch.cat([session.key, session.value], -1).to(device)
    store.memory.write(range(26), kv)
    span = PagedSpan(store.memory, pages, SequenceShare(0, 21, 5, None, 0, len(pages)))
    got = span.attend(1, session.query[None, :, 21:].to(device), RULES["softcap and window"])
    torch.testing.assert_close(got[0].cpu(), session.expected(1, RULES["softcap and window"]), rtol=1e-6, atol=1e-6)


def test_new_keys_and_values_lie_behind_the_old_ones_in_the_slab() -> None:
    torch.manual_seed(0)
    session = Session(5, 3)
    slab = session.hold(SlabStore(LAYOUT, 1 << 20))
    slab.keys[:, 0, :, 5:], slab.values[:, 0, :, 5:] = torch.nan, torch.nan
    step = HostStep([SlabSpan(slab, 3)])
    for layer in range(LAYERS):
        key, value = session.key[layer, None, :, 5:], session.value[layer, None, :, 5:]
        step.attend(layer, session.query[None, :, 5:], key, value, RULES["plain"])
    assert torch.equal(slab.keys[:, 0, :, :8], session.key)
    assert torch.equal(slab.values[:, 0, :, :8], session.value)
    assert slab.keys[:, 0, :, 8:].isnan().all()
    assert slab.length == 5


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_the_mask_opens_exactly_the_window_that_ends_at_the_query(window: int | None) -> None:
    mask = tail_mask(4, 5, window, torch.empty(0))
    for query, row in enumerate(mask):
        seen = (row == 0).nonzero().flatten().tolist()
        assert seen == list(range(max(0, query + 5 - (window or 100) + 1), query + 6))
    assert set(mask.flatten().tolist()) <= {0.0, float("-inf")}


@pytest.mark.parametrize("window", [None, 1, 2, 100])
def test_a_chains_tree_mask_is_its_tail_mask(window: int | None) -> None:
    assert torch.equal(tree_mask(Tree.chain(4), 5, window, torch.empty(0)), tail_mask(4, 5, window, torch.empty(0)))
