"""Many short generations with trees of drafts, by the real `propose_siblings` and `verify_tree`."""

from collections import defaultdict
from dataclasses import dataclass

import torch

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose_siblings
from specdec.rules.speculation import MAX_NODES
from specdec.sampling.params import SamplingParams
from specdec.trees import joining as tree_joining
from specdec.trees import verification as tree_verification
from specdec.trees.tree import ROOT, Tree, TreeDraft
from tests.conformance.g_test import g_test
from tests.conformance.sampled_chain import PROMPT, Rows
from tests.conformance.table_models import Context, TableModel, joint

SESSIONS = 3_000
LENGTH = 4
SHAPES = (Tree((ROOT, ROOT, 0, 0, 1)), Tree((ROOT, 0, ROOT)), Tree(), Tree((ROOT, ROOT)))
"""Trees by session and round. Every batch is ragged, and any fixed choice is allowed."""


@dataclass
class Growth:
    """A session's tree of drafts while it is drawn, node by node."""

    seed: int
    shape: Tree
    contexts: list[Context]
    """The context before the root's children, then the context before each node's children."""
    tokens: list[int]
    probs: list[SparseProbs | None]

    @classmethod
    def over(cls, seed: int, shape: Tree, output: Context) -> "Growth":
        return cls(seed, shape, [output], [0] * len(shape), [None] * (len(shape) + 1))

    def reach(self, node: int) -> int:
        """Record the context at `node`, and return the number of children wanted there."""
        if node >= len(self.shape):
            return 0
        if node != ROOT:
            self.contexts.append((*self.contexts[self.shape.parents[node] + 1], self.tokens[node]))
        return len(self.shape.children[node + 1])

    def take(self, node: int, drawn: list[int], law: SparseProbs | None) -> None:
        for child, token in zip(self.shape.children[node + 1], drawn, strict=True):
            self.tokens[child] = token
        self.probs[node + 1] = law

    def draft(self, sampled: bool) -> TreeDraft:
        return TreeDraft(self.shape, tuple(self.tokens), tuple(self.probs) if sampled else ())


@dataclass
class Forest:
    """Sessions whose trees are drawn in lockstep."""

    drawn: Siblings
    rule: Siblings
    params: SamplingParams
    target: TableModel
    drafter: TableModel
    dtype: torch.dtype
    """Dtype of p. An operator of the host may judge float32; planted bugs are in the rules of PyTorch."""

    def generate(self) -> list[Context]:
        p_rows, q_rows = (Rows(model, self.params, PROMPT) for model in (self.target, self.drafter))
        outputs: list[Context] = [()] * SESSIONS
        turn = 0
        while active := [seed for seed, output in enumerate(outputs) if len(output) < LENGTH]:
            grown = [Growth.over(seed, SHAPES[(seed + turn) % len(SHAPES)], outputs[seed]) for seed in active]
            for node in range(ROOT, max(map(len, SHAPES))):
                self._draw(q_rows, grown, node)
            p = p_rows.of([(context, context) for each in grown for context in each.contexts])
            drafts = [each.draft(self.drawn is not Siblings.DETERMINISTIC) for each in grown]
            verdicts = tree_verification.verify_tree(
                self.rule, p.to(self.dtype), drafts, active, [len(PROMPT) + len(outputs[seed]) for seed in active]
            )
            for seed, verdict in zip(active, verdicts, strict=True):
                outputs[seed] += verdict.tokens
            turn += 1
        return [output[:LENGTH] for output in outputs]

    def _draw(self, rows: Rows, grown: list[Growth], node: int) -> None:
        """Draw the children of `node` in every tree in which it has children."""
        by_width: dict[int, list[Growth]] = defaultdict(list)
        for each in grown:
            by_width[each.reach(node)].append(each)
        for width, same in by_width.items():
            if width:
                contexts = [each.contexts[node + 1] for each in same]
                q, seeds = rows.of([(context, context) for context in contexts]), [each.seed for each in same]
                at = [len(PROMPT) + len(context) for context in contexts]
                drawn, laws = propose_siblings(self.drawn, q, seeds, at, 3, range(width))
                for each, tokens, law in zip(same, drawn, laws or [None] * len(same), strict=True):
                    each.take(node, tokens, law)

    def p_value(self) -> float:
        return g_test(self.generate(), joint(self.target, self.params, PROMPT, LENGTH), 3)


def forest(
    drawn: Siblings,
    rule: Siblings | None = None,
    params: SamplingParams | None = None,
    dtype: torch.dtype = torch.float64,
) -> Forest:
    models = TableModel(3, seed=1), TableModel(3, seed=2)
    return Forest(drawn, rule or drawn, params or SamplingParams(), *models, dtype)


def two_drafters_p_value() -> float:
    """Run a G-test of one position for which two drafters drew siblings, some equal, each from its own q̂."""
    p = torch.tensor([[0.25, 0.35, 0.4]], dtype=torch.float64)
    many, rule = 3_000, Siblings.WITHOUT_REPLACEMENT
    seeds, at = list(range(many)), [0] * many
    trees: list[list[TreeDraft]] = [[] for _ in seeds]
    for drafter, (q, width) in enumerate([([0.7, 0.2, 0.1], 1), ([0.5, 0.4, 0.1], 2)]):
        places = [drafter * MAX_NODES + place for place in range(width)]
        drawn, laws = propose_siblings(rule, torch.tensor([q] * many), seeds, at, 3, places)
        for each, tokens, law in zip(trees, drawn, laws, strict=True):
            each.append(TreeDraft(Tree((ROOT,) * width), tuple(tokens), (law, *[None] * width)))
    drafts = [tree_joining.merged(tree_joining.side_by_side(each)) for each in trees]
    rows = sum(len(each.tree) + 1 for each in drafts)
    verdicts = tree_verification.verify_tree(rule, p.repeat(rows, 1), drafts, seeds, at)
    return g_test([verdict.tokens[:1] for verdict in verdicts], p[0], 3)


def first_token_p_value() -> float:
    """Run a G-test of one position with two siblings. The second is often judged after the first is rejected."""
    p, q = torch.tensor([[0.45, 0.45, 0.1]], dtype=torch.float64), torch.tensor([[0.4, 0.1, 0.5]])
    many, fork = 25_000, Tree((ROOT, ROOT))
    seeds, at = list(range(many)), [0] * many
    drawn, laws = propose_siblings(Siblings.WITH_REPLACEMENT, q.repeat(many, 1), seeds, at, 3, range(2))
    drafts = [TreeDraft(fork, tuple(pair), (law, None, None)) for pair, law in zip(drawn, laws, strict=True)]
    verdicts = tree_verification.verify_tree(Siblings.WITH_REPLACEMENT, p.repeat(3 * many, 1), drafts, seeds, at)
    return g_test([verdict.tokens[:1] for verdict in verdicts], p[0], 3)
