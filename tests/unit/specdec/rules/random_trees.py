"""Random trees, and the path from the root to a node."""

from hypothesis import strategies as st

from specdec.trees.tree import ROOT, Tree


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> Tree:
    size = draw(st.integers(0, most))
    return Tree(tuple(draw(st.integers(ROOT, node - 1)) for node in range(size)))


def lineage(tree: Tree, node: int) -> list[int]:
    """Return the path from a first node down to `node`."""
    path: list[int] = []
    while node != ROOT:
        path.insert(0, node)
        node = tree.parents[node]
    return path
