"""A tree is given by its parents, which determine depths, ancestors, children and paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import FieldInvalid
from specdec.rules.draft import SparseProbs
from specdec.trees.tree import ROOT, Tree, TreeDraft
from tests.unit.specdec.rules.random_trees import lineage, trees

FORKED = Tree((ROOT, ROOT, 0, 0, 3, 1))


@given(trees())
def test_a_node_sees_its_lineage_and_stands_at_its_length(tree: Tree) -> None:
    for node, depth in enumerate(tree.depths):
        assert tree.ancestors[node].nonzero()[:, 0].tolist() == lineage(tree, node)
        assert depth == len(lineage(tree, node)) - 1


@given(trees())
def test_every_node_is_its_parents_child_in_order(tree: Tree) -> None:
    assert sorted(node for family in tree.children for node in family) == list(range(len(tree)))
    for parent, family in enumerate(tree.children, ROOT):
        assert list(family) == sorted(family)
        assert all(tree.parents[node] == parent for node in family)


@given(trees())
def test_a_lineage_is_a_path_and_nothing_else_is(tree: Tree) -> None:
    assert tree.is_path(())
    for node in range(len(tree)):
        path = tuple(lineage(tree, node))
        assert tree.is_path(path)
        assert not tree.is_path((*path, node))
        assert not tree.is_path((*path, len(tree)))
        assert tree.is_path(path[1:]) == (len(path) == 1)


@pytest.mark.parametrize("nodes", [(-1,), (0, -1), (2,), (0, 1), (1, 2)])
def test_what_jumps_is_no_path(nodes: tuple[int, ...]) -> None:
    assert not FORKED.is_path(nodes)


def test_a_chain_is_a_tree_and_says_so() -> None:
    assert Tree.chain(3) == Tree((ROOT, 0, 1))
    assert Tree.chain(0) == Tree() == Tree(())
    assert Tree.chain(3).is_chain
    assert Tree().is_chain
    assert not FORKED.is_chain
    assert [Tree.chain(3).trunk, FORKED.trunk, Tree((ROOT, 0, 0)).trunk] == [3, 1, 2]


@given(trees(), st.integers(0, 4))
def test_after_pending_tokens_every_lineage_begins_with_them(tree: Tree, pending: int) -> None:
    hung = tree.after(pending)
    assert hung.trunk >= pending
    for node in range(len(tree)):
        assert lineage(hung, node + pending) == [*range(pending), *(above + pending for above in lineage(tree, node))]


@pytest.mark.parametrize("parents", [(0,), (-2,), (ROOT, 1), (ROOT, 0, 2)])
def test_a_parent_that_does_not_come_before_is_refused_by_name(parents: tuple[int, ...]) -> None:
    with pytest.raises(FieldInvalid) as refused:
        Tree(parents)
    assert refused.value.param == "parents"


def test_a_draft_has_a_token_a_node_and_a_distribution_a_family() -> None:
    fork = Tree((ROOT, ROOT))
    assert TreeDraft().tokens == TreeDraft(fork, (1, 2)).probs == ()
    for tokens, probs, param in [((1,), (), "tokens"), ((1, 2), (None, None), "probs")]:
        with pytest.raises(FieldInvalid) as refused:
            TreeDraft(fork, tokens, probs)
        assert refused.value.param == param
    probs: tuple[SparseProbs | None, ...] = (None, None, None)
    assert TreeDraft(fork, (1, 2), probs).probs == probs
