"""Invalid bounds of trees, and trees in modes without them, are refused by the name of their field."""

from typing import Any

import pytest

from specdec.errors import FieldInvalid
from specdec.rules.speculation import MAX_DEPTH, MAX_NODES, Mode, Speculation, TreeOptions

TREE = TreeOptions(nodes=8, width=3, depth=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("nodes", MAX_NODES + 1),
        ("width", 0),
        ("width", MAX_NODES + 1),
        ("depth", 0),
        ("depth", MAX_DEPTH + 1),
        ("drafters", ("a", "b", "c", "d", "e")),
        ("drafters", ("a", "a")),
        ("drafters", ("",)),
    ],
)
def test_a_bound_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(FieldInvalid) as refused:
        TreeOptions(**{"nodes": 8, "width": 3, "depth": 4, field: value})
    assert refused.value.param == f"speculation.tree.{field}"


def test_each_drafter_gets_a_node() -> None:
    with pytest.raises(FieldInvalid, match="at most 2 names for 2 nodes"):
        TreeOptions(2, 2, 2, drafters=("a", "b", "c"))


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"mode": Mode.BLOCK}, "speculation.tree"),
        ({"mode": Mode.OFF}, "speculation.tree"),
        ({"gamma": 3}, "speculation.gamma"),
        ({"lenience": 0.5}, "speculation.lenience"),
        ({"prediction": (1,)}, "speculation.tree"),
        ({"drafter": "c", "tree": TreeOptions(8, 3, 4, drafters=("a", "b"))}, "speculation.tree.drafters"),
    ],
    ids=str,
)
def test_what_trees_are_not_for_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        Speculation(**{"tree": TREE, **given})
    assert refused.value.param == param


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.COUPLED])
def test_trees_are_for_two_modes(mode: Mode) -> None:
    assert Speculation(mode, tree=TREE).tree == TREE
