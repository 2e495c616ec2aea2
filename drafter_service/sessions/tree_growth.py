"""One tree while it is drafted, a level at a time, under a budget of nodes.

Which nodes get children, and how many, is decided before any token of the level is drawn: it may depend on q and on the
levels above, and never on the draws themselves, or the output would be biased.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.rules.draft import SparseProbs
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.wire.session import TreePlan


@dataclass(frozen=True, slots=True, eq=False)
class TreeFamily:
    """The children of one node."""

    tokens: Sequence[int]
    """In the order of the draw."""
    law: SparseProbs | None
    """The q̂ that they were drawn from; None when they are not sampled."""
    weights: Sequence[float]
    """What each child is worth among its siblings, by its place: the greatest probabilities of q."""


class TreeGrowth:
    """The nodes that are drafted, and those that may get children next."""

    def __init__(self, plan: TreePlan, nodes: int) -> None:
        """Begin with the root alone; the tree gets `nodes` nodes at most."""
        self._plan = plan
        self._left = nodes
        self._parents: list[int] = []
        self._values: list[float] = []
        """What each node is worth: the chance, by q, that its path is right."""
        self._laws: list[SparseProbs | None] = [None]
        self.tokens: list[int] = []
        """The token of each node."""
        self.level = 0
        """Nodes on the paths to the nodes that come next."""
        self.first = ROOT
        """The first node of the last level."""
        self.frontier: tuple[int, ...] = (ROOT,)
        """The nodes of the last level that may get children; of siblings with one token, only the first."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def complete(self) -> bool:
        """Whether the tree has all the nodes it may have."""
        return not (self._left and self.frontier and self.level < self._plan.depth)

    @property
    def rows(self) -> int:
        """Nodes of the last level, all of which the drafter computes."""
        return max(1, len(self) - self.first) if self.tokens else 1

    @property
    def tree(self) -> Tree:
        return Tree(tuple(self._parents))

    def path(self, node: int) -> list[int]:
        """The tokens from the root down to a node."""
        return [] if node == ROOT else [*self.path(self._parents[node]), self.tokens[node]]

    def widths(self, weights: Sequence[Sequence[float]]) -> list[int]:
        """How many children each node of the frontier gets.

        Each level gets an equal share of the nodes that are left, for the children that are worth most.

        Args:
            weights: the greatest probabilities of q behind each node of the frontier, descending.
        """
        share = -(-self._left // (self._plan.depth - self.level))
        worth = [
            (-self._value(node) * weight, place)
            for place, (node, each) in enumerate(zip(self.frontier, weights, strict=True))
            for weight in each[: self._plan.width]
            if weight > 0.0
        ]
        chosen = [place for _, place in sorted(worth)[:share]]
        return [chosen.count(place) for place in range(len(self.frontier))]

    def add(self, families: Sequence[TreeFamily]) -> None:
        """Add a level: the children of each node of the frontier."""
        first, frontier = len(self), []
        for node, family in zip(self.frontier, families, strict=True):
            if family.tokens:
                self._laws[node + 1] = family.law
            for place, token in enumerate(family.tokens):
                if token not in family.tokens[:place]:
                    frontier.append(len(self))
                self._parents.append(node)
                self._values.append(self._value(node) * family.weights[place])
                self._laws.append(None)
                self.tokens.append(token)
        self._left -= len(self) - first
        self.level, self.first, self.frontier = self.level + 1, first, tuple(frontier)

    def draft(self) -> TreeDraft:
        """The tree as it is sent."""
        sampled = any(law is not None for law in self._laws)
        return TreeDraft(self.tree, tuple(self.tokens), tuple(self._laws) if sampled else ())

    def _value(self, node: int) -> float:
        return 1.0 if node == ROOT else self._values[node]
