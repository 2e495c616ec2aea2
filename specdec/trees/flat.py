"""Trees of a batch as flat tensors, one tree after the other, for the operator that judges them on the host."""

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.rules.draft import SparseProbs, join_probs
from specdec.trees.tree import ROOT, Draws, Tree, TreeDraft


class FlatTrees(NamedTuple):
    """Inputs of recursive rejection in addition to p: B trees with n nodes each, and D draws of a drafter in all."""

    first: Tensor
    """Row of p of each root, int64 [B]."""
    lengths: Tensor
    """Number of nodes of each tree, int64 [B]."""
    tokens: Tensor
    """Token of each node, int64 [Σn]."""
    drafters: Tensor
    """Number of drafters that drew the children of each root and of each node, int64 [Σ(n+1)]."""
    families: Tensor
    """Number of children of each draw, int64 [D]."""
    children: Tensor
    """The children of each draw, which are nodes of its tree, int64 [Σ families]."""
    sizes: Tensor
    """Number of ids of the q̂ of each draw, int64 [D]."""
    ids: Tensor
    """Ids of each q̂, int64 [Σk]."""
    weights: Tensor
    """Weights of those ids, int64 [Σk]."""
    u: Tensor
    """Uniforms by depth and index among the siblings, float64 [B, depth, width]."""
    last: Tensor
    """Uniform of a last token at each depth, below a node with children and below a leaf, float64 [B, depth, 2]."""


def flatten_trees(drafts: Sequence[TreeDraft], u: Tensor, last: Tensor) -> FlatTrees:
    """Lay out trees whose children were sampled; `u` and `last` are as in `FlatTrees`."""
    nodes = [draft.drawn(node) for draft in drafts for node in range(ROOT, len(draft.tree))]
    draws = [each for drawn in nodes for each in drawn]
    laws = join_probs([each.law for each in draws])
    return FlatTrees(
        first=_integers(list(accumulate((len(draft.tree) + 1 for draft in drafts[:-1]), initial=0))),
        lengths=_integers([len(draft.tree) for draft in drafts]),
        tokens=_integers([token for draft in drafts for token in draft.tokens]),
        drafters=_integers(list(map(len, nodes))),
        families=_integers([len(each.children) for each in draws]),
        children=_integers([child for each in draws for child in each.children]),
        sizes=torch.from_numpy(laws.sizes),
        ids=torch.from_numpy(laws.ids),
        weights=torch.from_numpy(laws.weights),
        u=u,
        last=last,
    )


def unflatten_trees(flat: FlatTrees) -> list[TreeDraft]:
    """Return the trees of `flat`, with the draws of each node."""
    sizes, families = flat.sizes.tolist(), flat.families.tolist()
    laws = map(SparseProbs, torch.split(flat.ids, sizes), torch.split(flat.weights, sizes))
    draws = map(Draws, (tuple(each.tolist()) for each in torch.split(flat.children, families)), laws)
    tokens, drafters = iter(flat.tokens.tolist()), iter(flat.drafters.tolist())
    trees = []
    for length in flat.lengths.tolist():
        nodes = [tuple(islice(draws, next(drafters))) for _ in range(length + 1)]
        parents = {child: node for node, drawn in enumerate(nodes, ROOT) for each in drawn for child in each.children}
        tree = Tree(tuple(parents[node] for node in range(length)))
        trees.append(TreeDraft(tree, tuple(islice(tokens, length)), proposals=tuple(nodes)))
    return trees


def _integers(numbers: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, np.int64))
