"""Packed attention over views equals the textbook formula, session by session."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from specdec.engine.attention import Rule
from specdec.engine.host.packed_step import PackedStep, SlabSpan
from specdec.engine.host.slab import Slab
from specdec.engine.kv_layout import KvLayout
from specdec.engine.span import FOLD_LIMIT, tail_mask, tree_mask
from specdec.tree import Tree

QUERY_HEADS, HEADS, KEY_WIDTH, VALUE_WIDTH, LAYERS = 6, 2, 8, 4, 2
LAYOUT = KvLayout(LAYERS, HEADS, KEY_WIDTH, VALUE_WIDTH, torch.float64, torch.device("cpu"))

RULES = {
    "plain": Rule(None, None, None, None),
    "scaled": Rule(0.3, None, None, None),
    "window": Rule(None, 4, None, None),
    "softcap": Rule(None, None, 0.7, None),
    "softcap and window": Rule(0.5, 4, 0.7, None),
    "sinks": Rule(None, None, None, torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -3.0], dtype=torch.float64)),
    "sinks and window": Rule(None, 4, None, torch.linspace(-1, 1, QUERY_HEADS, dtype=torch.float64)),
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
    """Random queries, keys and values of one whole sequence, and a slab filled up to `start`."""

    def __init__(self, start: int, count: int, tree: Tree | None = None) -> None:
        total = start + count
        self.start, self.count, self.tree = start, count, tree
        self.query = torch.randn(QUERY_HEADS, total, KEY_WIDTH, dtype=torch.float64)
        self.key = torch.randn(LAYERS, HEADS, total, KEY_WIDTH, dtype=torch.float64)
        self.value = torch.randn(LAYERS, HEADS, total, VALUE_WIDTH, dtype=torch.float64)
        shape = (LAYERS, 1, HEADS, total + 2)
        keys = torch.full((*shape, KEY_WIDTH), float("nan"), dtype=torch.float64)
        values = torch.full((*shape, VALUE_WIDTH), float("nan"), dtype=torch.float64)
        keys[:, 0, :, :start], values[:, 0, :, :start] = self.key[:, :, :start], self.value[:, :, :start]
        self.slab = Slab(keys, values, total + 2)
        self.slab.grow([0] * start)

    def expected(self, layer: int, rule: Rule) -> Tensor:
        """[count, query heads, value width] by the formula, one query and one head at a time."""
        rows = range(self.start, self.start + self.count)
        return torch.stack(
            [torch.stack([self._one(layer, head, row, rule) for head in range(QUERY_HEADS)]) for row in rows]
        )

    def _one(self, layer: int, head: int, row: int, rule: Rule) -> Tensor:
        shared = head // (QUERY_HEADS // HEADS)
        seen = self.lineage(row)[-rule.window if rule.window else None :]
        scale = KEY_WIDTH**-0.5 if rule.scale is None else rule.scale
        scores = self.key[layer, shared, seen] @ self.query[head, row] * scale
        if rule.softcap is not None:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        weights = scores.exp()
        total = weights.sum() + (0 if rule.sinks is None else rule.sinks[head].exp())
        return (weights / total) @ self.value[layer, shared, seen]

    def lineage(self, row: int) -> list[int]:
        """The tokens up to `row`, itself the last."""
        if self.tree is None or row < self.start:
            return list(range(row + 1))
        parent = self.tree.parents[row - self.start]
        return [*self.lineage(self.start + parent), row] if parent >= 0 else [*range(self.start), row]

    def span(self) -> SlabSpan:
        return SlabSpan(self.slab, self.count, self.tree)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_session_attends_to_its_own_past_only(rule: Rule, lengths: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    check([Session(start, count) for start, count in lengths], rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("start", [0, 2, 7])
def test_a_node_attends_to_the_context_and_its_own_lineage_only(rule: Rule, start: int) -> None:
    torch.manual_seed(0)
    forked, wide = Tree((-1, 0, 0, 2, 1, 3, 5, -1)), Tree((-1, *[node // 2 for node in range(FOLD_LIMIT + 3)]))
    sessions = [Session(start, len(tree), tree) for tree in (forked, wide)]
    check(sessions, rule)
    check([sessions[0], Session(9, 4), sessions[1], Session(0, 6), Session(3, 1)], rule)


def check(sessions: list[Session], rule: Rule) -> None:
    step = PackedStep([session.span() for session in sessions])
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


def test_new_keys_and_values_lie_behind_the_old_ones_in_the_slab() -> None:
    torch.manual_seed(0)
    session = Session(5, 3)
    step = PackedStep([SlabSpan(session.slab, 3)])
    for layer in range(LAYERS):
        key, value = session.key[layer, None, :, 5:], session.value[layer, None, :, 5:]
        step.attend(layer, session.query[None, :, 5:], key, value, RULES["plain"])
    assert torch.equal(session.slab.keys[:, 0, :, :8], session.key)
    assert torch.equal(session.slab.values[:, 0, :, :8], session.value)
    assert session.slab.keys[:, 0, :, 8:].isnan().all()
    assert session.slab.length == 5


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


def test_spans_of_a_session_grow_with_it() -> None:
    torch.manual_seed(0)
    session = Session(0, 9)
    outputs = []
    for start, end in pairwise([0, 4, 5, 9]):
        session.slab.tokens = [0] * start
        share = slice(start, end)
        outputs.append(
            PackedStep([SlabSpan(session.slab, end - start)]).attend(
                0,
                session.query[None, :, share],
                session.key[0, None, :, share],
                session.value[0, None, :, share],
                RULES["window"],
            )
        )
    torch.testing.assert_close(torch.cat(outputs, 1)[0], session.expected(0, RULES["window"]))
