"""By enumeration: for any tree and any drafter's model, the joint law of a tree round's tokens is the target's."""

from itertools import product

import pytest

from specdec.rules.multidraft import Siblings
from specdec.trees.tree import Tree
from tests.conformance.exact_tree import DRAWS, TREES, Enumeration, Models


@pytest.mark.parametrize("siblings", DRAWS, ids=str)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_the_joint_law_of_a_tree_round_is_the_targets(siblings: Siblings, tree: Tree) -> None:
    assert Enumeration(siblings, siblings, tree, Models(seed=1)).error() <= 1e-12


@pytest.mark.parametrize(("drawn", "rule"), [p for p in product(DRAWS, DRAWS) if p[0] != p[1]])
def test_the_other_forms_rule_is_caught(drawn: Siblings, rule: Siblings) -> None:
    assert Enumeration(drawn, rule, TREES["one branch goes on"], Models(seed=1)).error() > 1e-3
