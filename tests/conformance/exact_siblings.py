"""The exact law of one position with several drafts, by integrating the real rules over their uniforms."""

import math
from collections.abc import Callable
from itertools import permutations, product

import torch
from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import NONE, Choice
from specdec.rules.padding import supports

Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Choice]
"""A rule with the signature of `specdec.rules.multidraft.with_replacement`."""
Draws = dict[tuple[int, ...], float]
"""The probability of each ordered set of siblings."""
PARTS, DIVISIONS = 64, 10
"""Parts into which an interval of uniforms is divided, and repeated divisions of the remaining part."""


def drawn_with_replacement(q: SparseProbs, width: int) -> Draws:
    share = _share(q)
    return {tokens: math.prod(share[token] for token in tokens) for tokens in product(share, repeat=width)}


def drawn_without_replacement(q: SparseProbs, width: int) -> Draws:
    share = _share(q)
    return {tokens: _without(share, tokens) for tokens in permutations(share, min(width, len(share)))}


def _share(q: SparseProbs) -> dict[int, float]:
    total = int(q.weights.sum())
    return {token: weight / total for token, weight in zip(q.ids.tolist(), q.weights.tolist(), strict=True)}


def _without(share: dict[int, float], tokens: tuple[int, ...]) -> float:
    chance, left = 1.0, 1.0
    for token in tokens:
        chance *= share[token] / left
        left -= share[token]
    return chance


class Node:
    """The siblings of one position, in every order in which they can be drawn, judged by a rule."""

    def __init__(self, rule: Rule, p: Tensor, q: SparseProbs, draws: Draws) -> None:
        self._rule = rule
        self.draws = list(draws)
        self.chances = torch.tensor([draws[tokens] for tokens in self.draws], dtype=torch.float64)
        self._children = torch.tensor(self.draws)
        self._p, self._support = p.double(), supports([q], torch.device("cpu"))

    def choose(self, u: Tensor) -> Choice:
        """Apply the rule at uniforms u [N, K]. N is a multiple of the draws."""
        ids, q = (each.expand(len(u), -1) for each in self._support)
        children = self._children.repeat(len(u) // len(self.draws), 1)
        return self._rule(self._p.expand(len(u), -1), ids, q, children, u)

    def kept(self) -> Tensor:
        """Return the probability that each sibling is the one kept, and last that none is, [N, K + 1]."""
        columns, rejected = [], torch.ones(len(self.draws), dtype=torch.float64)
        for place in range(self._children.shape[1]):
            threshold = self._threshold(place)
            columns.append(rejected * threshold)
            rejected = rejected * (1 - threshold)
        return torch.stack([*columns, rejected], dim=1)

    def law(self) -> Tensor:
        """Return the law of the committed token [V]."""
        kept = self.kept() * self.chances[:, None]
        left = self.choose(torch.full(self._children.shape, math.inf, dtype=torch.float64)).left
        law = (kept[:, -1:] * left / left.sum(1, keepdim=True)).sum(0)
        return law.index_add_(0, self._children.flatten(), kept[:, :-1].flatten())

    def accepted(self) -> float:
        """Return the probability that some sibling is kept."""
        return float((self.chances * (1 - self.kept()[:, -1])).sum())

    def _threshold(self, place: int) -> Tensor:
        """Return the uniform below which a sibling is kept if those before it were not.

        An infinite uniform keeps nothing.
        """
        low, width = torch.zeros(len(self.draws), dtype=torch.float64), 1.0
        for _ in range(DIVISIONS):
            width /= PARTS
            points = low + width * torch.arange(1, PARTS, dtype=torch.float64)[:, None]
            u = torch.full((points.numel(), self._children.shape[1]), math.inf, dtype=torch.float64)
            u[:, place] = points.flatten()
            passed = self.choose(u).child != NONE
            low = low + width * passed.view_as(points).sum(0)
        return low
