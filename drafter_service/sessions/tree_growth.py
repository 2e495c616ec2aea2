"""Growth of one tree, level by level, within a budget of nodes.

The number of children of each node is chosen before any token of the level is drawn. It may depend on q and on the
levels above, but never on the draws themselves, which would bias the output.
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
    """Tokens of the children, in the order of the draws."""
    law: SparseProbs | None
    """Distribution q̂ that the children were drawn from; None if they are not sampled."""
    weights: Sequence[float]
    """Value of each child among its siblings, by index: the greatest probabilities of q."""


class TreeGrowth:
    """The drafted nodes, and the frontier of nodes that may get children next."""

    def __init__(self, plan: TreePlan, nodes: int) -> None:
        """Start with only the root. The tree gets at most `nodes` nodes."""
        self._plan = plan
        self._left = nodes
        self._parents: list[int] = []
        self._values: list[float] = []
        """Value of each node: the probability, by q, that its path is right."""
        self._laws: list[SparseProbs | None] = [None]
        self.tokens: list[int] = []
        """Token of each node."""
        self.level = 0
        """Path length, in nodes, before the next level."""
        self.first = ROOT
        """First node of the last level."""
        self.frontier: tuple[int, ...] = (ROOT,)
        """Nodes of the last level that may get children. Of siblings with equal tokens, only the first."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def complete(self) -> bool:
        """Whether the tree cannot grow further."""
        return not (self._left and self.frontier and self.level < self._plan.depth)

    @property
    def rows(self) -> int:
        """Number of nodes of the last level, all of which the drafter computes."""
        return max(1, len(self) - self.first) if self.tokens else 1

    @property
    def tree(self) -> Tree:
        return Tree(tuple(self._parents))

    def path(self, node: int) -> list[int]:
        """Return the tokens on the path from the root to a node."""
        return [] if node == ROOT else [*self.path(self._parents[node]), self.tokens[node]]

    def widths(self, weights: Sequence[Sequence[float]]) -> list[int]:
        """Return the number of children for each frontier node.

        Each level gets an equal share of the remaining nodes, given to the most valuable children.

        Args:
            weights: greatest probabilities of q after each frontier node, descending.
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
        """Add a level: the children of each frontier node."""
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
        """Return the tree in the form that is sent."""
        sampled = any(law is not None for law in self._laws)
        return TreeDraft(self.tree, tuple(self.tokens), tuple(self._laws) if sampled else ())

    def _value(self, node: int) -> float:
        return 1.0 if node == ROOT else self._values[node]
