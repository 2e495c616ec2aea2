"""Draft trees: `Tree` is a topology given by parents, and `TreeDraft` has a token for each node."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specdec.errors import FieldInvalid
from specdec.rules.draft import SparseProbs

ROOT = -1
"""The parent of a first node, which stands for the last token of the context."""


@dataclass(frozen=True)
class Tree:
    """n nodes, each with a higher index than its parent; siblings are in the order of the draw.

    Raises:
        FieldInvalid: a parent is not ROOT or an earlier node.
    """

    parents: tuple[int, ...] = ()
    """Index of each node's parent, ROOT for a first node."""

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise FieldInvalid(
                    f"the parent of node {node} must be in [{ROOT}, {node - 1}], got {parent}", "parents"
                )

    @classmethod
    def chain(cls, length: int) -> "Tree":
        """`length` nodes, one after the other."""
        return cls(tuple(range(ROOT, length - 1)))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        return self.trunk == len(self)

    @cached_property
    def trunk(self) -> int:
        """Number of leading nodes that form a chain."""
        forks = (node for node, parent in enumerate(self.parents) if parent != node - 1)
        return next(forks, len(self))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of tokens between the context and each node, so that position = length of the context + depth."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of the root, then of each node: the children of `node` are at index `node + 1`."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def ancestors(self) -> Tensor:
        """Ancestors of each node, bool [n, n]: row i is True at node i and at every node above it."""
        reach = torch.eye(len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                reach[node] |= reach[parent]
        return reach

    def is_path(self, nodes: tuple[int, ...]) -> bool:
        """Whether `nodes` form a path: first a child of the root, then each node a child of the previous one."""
        return all(
            0 <= node < len(self) and self.parents[node] == above
            for above, node in zip((ROOT, *nodes), nodes, strict=False)
        )

    def path_to(self, node: int) -> tuple[int, ...]:
        """The path from the root down to `node`; empty for ROOT."""
        path: tuple[int, ...] = ()
        while node != ROOT:
            path, node = (node, *path), self.parents[node]
        return path

    def after(self, pending: int) -> "Tree":
        """This tree below a chain of `pending` tokens, as the target computes it in a pass."""
        return Tree((*range(ROOT, pending - 1), *(parent + pending for parent in self.parents)))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draws of one drafter for one position."""

    children: tuple[int, ...]
    """The nodes that hold the draws, in the order of the draw."""
    law: SparseProbs
    """The q̂ that the children were drawn from."""


@dataclass(frozen=True, slots=True, eq=False)
class TreeDraft:
    """A token for each node, and the q̂ from which each set of siblings was drawn.

    Raises:
        FieldInvalid: tokens, distributions and nodes do not match in number.
    """

    tree: Tree = Tree()
    tokens: tuple[int, ...] = ()
    """The token of each node [n]."""
    probs: tuple[SparseProbs | None, ...] = ()
    """q̂ of the root's children, then of each node's, None for a leaf [n + 1]; empty when children are not sampled."""
    proposals: tuple[tuple[Draws, ...], ...] = ()
    """Draws of the root's children, then of each node's, in the order in which they are judged [n + 1]. Used when a
    position may have draws of several drafters; a token that several drew may be one node. Empty when `probs` holds
    every q̂."""

    def drawn(self, node: int) -> tuple[Draws, ...]:
        """The draws of the children of a node or of ROOT; empty for a leaf, and when children are not sampled."""
        if self.proposals:
            return self.proposals[node + 1]
        law, children = self.probs[node + 1] if self.probs else None, self.tree.children[node + 1]
        return () if law is None or not children else (Draws(children, law),)

    @property
    def before(self) -> list[tuple[int, ...]]:
        """The drafted tokens before each row of p: none, then the path down to each node [n + 1]."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.tree.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        return paths

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.tree):
            raise FieldInvalid(f"{len(self.tokens)} tokens for {len(self.tree)} nodes", "tokens")
        if len(self.probs) not in (0, len(self.tree) + 1):
            raise FieldInvalid(f"{len(self.probs)} distributions for {len(self.tree)} nodes and a root", "probs")

    def cut(self, count: int) -> "TreeDraft":
        """The first `count` nodes.

        Cut before equal siblings are merged, not after: with nodes ordered by depth, and siblings in the order of the
        draw, the number kept then does not depend on the drawn tokens. A q̂ without remaining children is dropped.
        """
        if count >= len(self.tree):
            return self
        tree = Tree(self.tree.parents[:count])
        probs = tuple(law if children else None for law, children in zip(self.probs, tree.children, strict=False))
        proposals = tuple(_cut(made, count) for made in self.proposals[: count + 1])
        return TreeDraft(tree, self.tokens[:count], probs, proposals)


def _cut(made: tuple[Draws, ...], count: int) -> tuple[Draws, ...]:
    """The draws with a child among the first `count` nodes, with only these children."""
    kept = (Draws(tuple(child for child in draws.children if child < count), draws.law) for draws in made)
    return tuple(draws for draws in kept if draws.children)
