"""One call for a batch of trees: chains get the chain rule's verdict, paths lead down, and invalid input is named."""

import random
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec.errors import FieldInvalid, InternalError, SpecdecError, TokenOutOfRange
from specdec.rules.draft import NO_DRAFT, SparseProbs, Verdict
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose, propose_siblings
from specdec.rules.speculation import Mode, Origin
from specdec.rules.verification import verify
from specdec.trees.joining import merged
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.trees.verification import check_trees, verify_certain_trees, verify_tree
from tests.support.draft_laws import compress
from tests.unit.specdec.rules.random_trees import VOCAB, distributions, fill, lineage, trees

SAMPLED = [Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT]
FORKED = Tree((ROOT, ROOT, ROOT, 0, 0, 1, 4))


@pytest.mark.parametrize("siblings", SAMPLED)
def test_one_sibling_draws_what_the_chain_draws(siblings: Siblings) -> None:
    q = distributions(20, 3)
    seeds, positions = list(range(20)), list(range(20))
    tokens, probs = propose(Mode.REJECTION, q, seeds, positions, 5)
    families, laws = propose_siblings(siblings, q, seeds, positions, 5, range(1))
    assert families == [[token] for token in tokens]
    assert all(torch.equal(law.ids, each.ids) for law, each in zip(laws, probs, strict=True))


@pytest.mark.parametrize("siblings", Siblings)
@given(shapes=st.lists(trees(6), min_size=1, max_size=4), seed=st.integers(0, 2**32), missing=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
@example(shapes=[Tree((ROOT, 0, 0))], seed=1852367, missing=1)
def test_certain_verdicts_are_those_of_one_hot_rows(
    siblings: Siblings, shapes: list[Tree], seed: int, missing: int
) -> None:
    """At temperature 0, verdicts from the certain tokens alone, with a row that may have no distribution."""
    drafts = [merged(fill(siblings, tree, seed + b)) for b, tree in enumerate(shapes)]
    firsts = {0, *accumulate(len(draft.tree) + 1 for draft in drafts)}
    dice, rows = random.Random(seed), sum(len(draft.tree) + 1 for draft in drafts)
    drafted = [token for draft in drafts for token in draft.tokens]
    best = torch.tensor([dice.choice([*drafted, dice.randrange(VOCAB)]) for _ in range(rows)])
    p, mass = torch.zeros(rows, VOCAB).scatter_(1, best[:, None], 1.0), torch.ones(rows, dtype=torch.float64)
    if missing < rows and missing not in firsts:
        p[missing], mass[missing] = torch.nan, torch.nan
    expected = verify_tree(siblings, p, drafts, [seed] * len(drafts), [10] * len(drafts))
    assert verify_certain_trees(siblings, best, mass, drafts, VOCAB) == expected


@pytest.mark.parametrize("siblings", Siblings)
def test_a_verdict_is_the_same_alone_and_in_a_batch(siblings: Siblings) -> None:
    shapes = [FORKED, Tree(), Tree.chain(3), Tree((ROOT, ROOT, 1)), Tree((ROOT, 0, 0, 0))] * 12
    drafts = [fill(siblings, tree, seed=b) for b, tree in enumerate(shapes)]
    rows = [distributions(len(tree) + 1, seed=b) for b, tree in enumerate(shapes)]
    together = verify_tree(siblings, torch.cat(rows), drafts, list(range(60)), [10] * 60)
    alone = [verify_tree(siblings, rows[b], [drafts[b]], [b], [10])[0] for b in range(60)]
    assert together == alone
    assert {len(verdict.path) for verdict in together} >= {0, 1, 2}
    assert {verdict.origins[-1] for verdict in together} == {Origin.PLAIN, Origin.RECOVERED, Origin.BONUS}


@pytest.mark.parametrize("siblings", Siblings)
def test_another_device_gives_the_same_verdicts(siblings: Siblings, device: torch.device) -> None:
    drafts = [fill(siblings, FORKED, seed=b) for b in range(40)]
    p, seeds, positions = distributions(40 * (len(FORKED) + 1), 4), list(range(40)), [10] * 40
    assert verify_tree(siblings, p.to(device), drafts, seeds, positions) == verify_tree(
        siblings, p, drafts, seeds, positions
    )


@pytest.mark.parametrize("siblings", Siblings)
@given(trees(8), st.integers(0, 2**62))
@settings(deadline=None, max_examples=40)
def test_a_verdict_is_a_path_and_one_token(siblings: Siblings, tree: Tree, seed: int) -> None:
    draft = fill(siblings, tree, seed=seed)
    (verdict,) = verify_tree(siblings, distributions(len(tree) + 1, seed), [draft], [seed], [10])
    assert tree.is_path(verdict.path)
    assert len(verdict.tokens) == len(verdict.origins) == len(verdict.path) + 1
    assert verdict.tokens[:-1] == tuple(draft.tokens[node] for node in verdict.path)
    end = verdict.path[-1] if verdict.path else ROOT
    leaf = Origin.BONUS if draft.tokens else Origin.PLAIN
    assert verdict.origins[-1] is (Origin.RECOVERED if tree.children[end + 1] else leaf)


@pytest.mark.parametrize("siblings", Siblings)
@given(trees(8), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_greedy_keeps_the_longest_agreeing_path(siblings: Siblings, tree: Tree, seed: int) -> None:
    """At temperature 0 a node is right if each token of its lineage is the argmax after the one before."""
    draft = fill(siblings, tree, seed=seed)
    chooser = random.Random(seed)
    best = [chooser.choice([0, *(draft.tokens[child] for child in family)]) for family in tree.children]
    (verdict,) = verify_tree(siblings, torch.eye(VOCAB)[best], [draft], [seed], [10])
    right = [
        lineage(tree, node)
        for node in range(len(tree))
        if all(draft.tokens[each] == best[tree.parents[each] + 1] for each in lineage(tree, node))
    ]
    if siblings is not Siblings.WITH_REPLACEMENT:
        assert list(verdict.path) == max(right, key=len, default=[])
    assert verdict.tokens[-1] == best[verdict.path[-1] + 1 if verdict.path else 0]
    assert list(verdict.path) in [[], *right]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.COUPLED])
def test_agreement_emits_the_tokens_of_modes_without_a_ratio_for_any_tree(mode: Mode) -> None:
    """The seed of a flat model determines the token at each position. The tree determines only their number."""
    law = distributions(1, 4)
    for seed in range(200):
        plain = [verify(mode, law, [NO_DRAFT], [seed], [at])[0].tokens[0] for at in range(10, 14)]
        draft = fill(Siblings.DETERMINISTIC, FORKED, seed=4)
        (verdict,) = verify_tree(Siblings.DETERMINISTIC, law.repeat(len(FORKED) + 1, 1), [draft], [seed], [10])
        assert list(verdict.tokens) == plain[: len(verdict.tokens)]


def test_siblings_are_in_the_order_of_the_draw() -> None:
    """Without replacement the second of two was drawn from the rest after the first. q has only these two ids."""
    q = SparseProbs(torch.tensor([1, 2]), torch.tensor([1, 3]))
    p = torch.zeros(3, VOCAB, dtype=torch.float64)
    p[:, 1], p[:, 2] = 0.25, 0.75
    draft = TreeDraft(Tree((ROOT, ROOT)), (1, 2), (q, None, None))
    verdicts = verify_tree(Siblings.WITHOUT_REPLACEMENT, p.repeat(50, 1), [draft] * 50, list(range(50)), [0] * 50)
    assert {verdict.path for verdict in verdicts} == {(0,)}


def test_fewer_siblings_than_asked_for_when_q_has_no_more() -> None:
    q = torch.tensor([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    families, _ = propose_siblings(Siblings.WITHOUT_REPLACEMENT, q, [1, 2], [5, 5], 4, range(3))
    assert [sorted(family) for family in families] == [[1, 2], [0]]
    families, _ = propose_siblings(Siblings.WITH_REPLACEMENT, q, [1, 2], [5, 5], 4, range(3))
    assert [len(family) for family in families] == [3, 3]
    families, laws = propose_siblings(
        Siblings.DETERMINISTIC, torch.tensor([[0.1, 0.3, 0.6, 0.0]]), [1], [5], 9, range(2)
    )
    assert (families, laws) == ([[2, 1]], [])


def test_siblings_do_not_share_a_number() -> None:
    q = torch.full((400, 2), 0.5)
    families, _ = propose_siblings(Siblings.WITH_REPLACEMENT, q, list(range(400)), [0] * 400, 2, range(2))
    assert 100 < sum(first != second for first, second in families) < 300


def test_no_drafts_give_no_verdicts() -> None:
    assert verify_tree(Siblings.DETERMINISTIC, torch.zeros(0, VOCAB), [], [], []) == []


def test_an_empty_tree_gets_one_plain_token() -> None:
    (verdict,) = verify_tree(Siblings.WITH_REPLACEMENT, torch.eye(VOCAB)[[3]], [TreeDraft()], [1], [5])
    assert verdict == Verdict((3,), accepted=0, drafted=0, path=(), at_leaf=True)
    assert verdict.origins == (Origin.PLAIN,)
    assert verdict.origins == (Origin.PLAIN,)


FORK = Tree((ROOT, ROOT))
LAW = compress(torch.full((1, 3), 1 / 3), 3)[0]
NEGATIVE = SparseProbs(torch.tensor([0, 1]), torch.tensor([1, -1]))
BAD_TREES = {
    "token over the vocabulary": (Siblings.DETERMINISTIC, (0, VOCAB), (), TokenOutOfRange),
    "deterministic siblings share a token": (Siblings.DETERMINISTIC, (1, 1), (), FieldInvalid),
    "distinct siblings share a token": (Siblings.WITHOUT_REPLACEMENT, (1, 1), (LAW, None, None), FieldInvalid),
    "no distribution": (Siblings.WITH_REPLACEMENT, (0, 1), (), FieldInvalid),
    "no distribution of the siblings": (Siblings.WITH_REPLACEMENT, (0, 1), (None, LAW, None), FieldInvalid),
    "second sibling outside the support": (Siblings.WITH_REPLACEMENT, (0, 3), (LAW, None, None), FieldInvalid),
    "negative weight": (Siblings.WITHOUT_REPLACEMENT, (0, 1), (NEGATIVE, None, None), FieldInvalid),
}


@pytest.mark.parametrize(("siblings", "tokens", "probs", "error"), BAD_TREES.values(), ids=BAD_TREES)
def test_a_malformed_tree_is_refused_by_name(
    siblings: Siblings, tokens: tuple[int, ...], probs: tuple[SparseProbs | None, ...], error: type[SpecdecError]
) -> None:
    draft = TreeDraft(FORK, tokens, probs)
    with pytest.raises(error):
        check_trees(siblings, [draft], VOCAB)
    with pytest.raises(error):
        verify_tree(siblings, distributions(3, 0), [draft], [0], [0])


@pytest.mark.parametrize(
    ("p", "seeds"), [(torch.ones(2, VOCAB), [0]), (torch.ones(1, VOCAB), [0, 1]), (torch.zeros(1, VOCAB), [0])]
)
def test_shapes_that_disagree_are_refused(p: Tensor, seeds: list[int]) -> None:
    with pytest.raises(InternalError):
        verify_tree(Siblings.DETERMINISTIC, p, [TreeDraft()], seeds, [0])
