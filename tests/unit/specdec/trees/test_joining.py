"""Trees of several drafters join into one that keeps every proposal with its own q̂, in the order of the draw."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.rules.draft import Draft, SparseProbs, certain
from specdec.rules.multidraft import Siblings
from specdec.rules.speculation import Mode
from specdec.trees.joining import as_tree, forked, merged, side_by_side
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.trees.verification import verify_tree
from tests.unit.specdec.rules.random_trees import trees


def law(*ids: int) -> SparseProbs:
    return SparseProbs(torch.tensor(ids), torch.ones(len(ids), dtype=torch.int64))


FIRST, SECOND, BELOW, OTHER = law(4, 5), law(5, 6), law(7), law(7, 8)
ONE = TreeDraft(Tree((ROOT, ROOT, 1)), (4, 5, 7), (FIRST, None, BELOW, None))
TWO = TreeDraft(Tree((ROOT, ROOT, 0)), (5, 6, 8), (SECOND, OTHER, None, None))


def proposed(draft: TreeDraft, node: int) -> list[tuple[tuple[int, ...], SparseProbs]]:
    """Return the tokens of each drafter's draws at a node, and the q̂ for their verdicts."""
    return [(tuple(draft.tokens[child] for child in each.children), each.law) for each in draft.drawn(node)]


def test_side_by_side_nodes_lie_by_depth_and_keep_their_owners_q() -> None:
    joined = side_by_side([ONE, TWO])
    assert joined.tokens == (4, 5, 5, 6, 7, 8)
    assert joined.tree.parents == (ROOT, ROOT, ROOT, ROOT, 1, 2)
    assert proposed(joined, ROOT) == [((4, 5), FIRST), ((5, 6), SECOND)]
    assert proposed(joined, 1) == [((7,), BELOW)]
    assert proposed(joined, 2) == [((8,), OTHER)]


def test_a_token_of_two_drafters_is_one_node_with_proposals_of_both() -> None:
    one = merged(side_by_side([ONE, TWO]))
    assert one.tokens == (4, 5, 6, 7, 8)
    assert one.tree.parents == (ROOT, ROOT, ROOT, 1, 1)
    assert proposed(one, ROOT) == [((4, 5), FIRST), ((5, 6), SECOND)]
    assert proposed(one, 1) == [((7,), BELOW), ((8,), OTHER)]


def test_a_draft_without_equal_siblings_is_left_alone() -> None:
    assert merged(ONE) is ONE


def test_a_chain_is_the_tree_that_it_is() -> None:
    tree = as_tree(certain((3, 4), Mode.REJECTION))
    assert (tree.tree, tree.tokens) == (Tree.chain(2), (3, 4))
    assert [each.law.ids.tolist() for node in (ROOT, 0) for each in tree.drawn(node)] == [[3], [4]]
    assert tree.drawn(1) == ()
    assert as_tree(Draft((3, 4))).probs == ()
    assert as_tree(tree) is tree


def test_a_fork_has_two_draws_for_its_first_position() -> None:
    laws = (law(3, 8), law(4), law(5))
    fork = forked(Draft((3, 4, 5), laws), 8)
    assert (fork.tokens, fork.tree.parents) == ((3, 8, 4, 5), (ROOT, ROOT, 0, 2))
    assert [proposed(fork, node) for node in (ROOT, 0, 2)] == [
        [((3, 8), laws[0])],
        [((4,), laws[1])],
        [((5,), laws[2])],
    ]
    assert fork.drawn(1) == fork.drawn(3) == ()
    assert forked(Draft((3,), laws[:1]), 8).probs == (laws[0], None, None)
    assert forked(Draft((3, 4)), 8).probs == ()


def test_a_cut_keeps_the_draws_that_came_first() -> None:
    cut = side_by_side([ONE, TWO]).cut(3)
    assert proposed(cut, ROOT) == [((4, 5), FIRST), ((5,), SECOND)]
    assert cut.tree.parents == (ROOT, ROOT, ROOT)
    assert cut.cut(9) is cut
    assert ONE.cut(1).drawn(ROOT)[0].children == (0,)


@given(st.lists(trees(6), min_size=1, max_size=3), st.integers(0, 2**32))
def test_greedy_verdicts_do_not_depend_on_merging(shapes: list[Tree], seed: int) -> None:
    """A merged tree commits the same as its trees side by side, longest path first."""
    tokens = torch.Generator().manual_seed(seed)
    drafts = [TreeDraft(tree, tuple(torch.randint(0, 2, (len(tree),), generator=tokens).tolist())) for tree in shapes]
    one = merged(side_by_side(drafts))
    p = torch.zeros(len(one.tree) + 1, 2)
    p[:, 1] = 1.0
    verdict = verify_tree(Siblings.DETERMINISTIC, p, [one], [0], [0])[0]
    longest = max(_ones(draft, ROOT) for draft in drafts)
    assert len(verdict.path) == longest
    assert verdict.tokens == (1,) * (longest + 1)


def _ones(draft: TreeDraft, node: int) -> int:
    """Return the length of the longest path of ones from a node down."""
    children = [child for child in draft.tree.children[node + 1] if draft.tokens[child] == 1]
    return max((1 + _ones(draft, child) for child in children), default=0)
