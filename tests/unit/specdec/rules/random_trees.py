"""Random trees with drawn tokens, and the path from the root to a node."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Siblings
from specdec.rules.proposal import propose_siblings
from specdec.trees.tree import ROOT, Tree, TreeDraft

VOCAB = 12


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


def distributions(rows: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(rows, VOCAB, generator=generator)).to(dtype).softmax(-1)


def fill(siblings: Siblings, tree: Tree, seed: int, position: int = 10) -> TreeDraft:
    """Draw children at each node from a distribution of its own, close to the same row of `distributions`."""
    q = (distributions(len(tree) + 1, seed) + distributions(len(tree) + 1, 77 + seed)) / 2
    tokens, probs = [0] * len(tree), []
    for slot, family in enumerate(tree.children):
        at = position + (0 if slot == 0 else tree.depths[slot - 1] + 1)
        ((*drawn,), law) = (made[0] if made else None for made in draw(siblings, q[[slot]], seed, at, len(family)))
        for child, token in zip(family, drawn, strict=True):
            tokens[child] = token
        probs.append(law if family else None)
    return TreeDraft(tree, tuple(tokens), () if siblings is Siblings.DETERMINISTIC else tuple(probs))


def draw(siblings: Siblings, q: Tensor, seed: int, at: int, width: int) -> tuple[list[list[int]], list[SparseProbs]]:
    if width == 0:
        return [[]], []
    return propose_siblings(siblings, q, [seed], [at], VOCAB, range(width))
