"""The exact law of one round over a tree of drafts, by integrating the real `walk` over its uniforms."""

import math
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from specdec.rules import multidraft
from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import NONE, Siblings
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.trees import verification as tree_verification
from specdec.trees.tree import ROOT, Tree, TreeDraft
from tests.conformance.exact_siblings import Draws, Node, Rule, drawn_with_replacement, drawn_without_replacement
from tests.conformance.table_models import Context, TableModel, contexts
from tests.support.draft_laws import compress

VOCAB = 3
DRAWS = {
    Siblings.WITH_REPLACEMENT: drawn_with_replacement,
    Siblings.WITHOUT_REPLACEMENT: drawn_without_replacement,
}
TREES = {
    "chain": Tree((ROOT, 0)),
    "siblings": Tree((ROOT, ROOT)),
    "three siblings": Tree((ROOT, ROOT, ROOT)),
    "one branch goes on": Tree((ROOT, ROOT, 0)),
    "both branches go on": Tree((ROOT, ROOT, 0, 0, 1)),
    "uneven": Tree((ROOT, 0, ROOT, 1, 1)),
}


def rule_of(siblings: Siblings) -> Rule:
    """Return the product's rule for these siblings."""
    return multidraft.with_replacement if siblings is Siblings.WITH_REPLACEMENT else multidraft.without_replacement


class Models:
    """A target's and a drafter's distributions by context, computed by the real functions."""

    def __init__(self, seed: int) -> None:
        self._tables = TableModel(VOCAB, seed), TableModel(VOCAB, 1000 + seed)
        self._seen: dict[tuple[int, Context], Tensor] = {}

    def p(self, context: Context) -> Tensor:
        return self._row(0, context)

    def q(self, context: Context) -> SparseProbs:
        return compress(self._row(1, context)[None], VOCAB)[0]

    def _row(self, which: int, context: Context) -> Tensor:
        if (which, context) not in self._seen:
            logits = self._tables[which].logits(context)[None]
            self._seen[which, context] = probabilities(logits, [SamplingParams()], [History()])[0]
        return self._seen[which, context]


class Enumeration:
    """Every assignment of drafts to a tree, and for each of them every path that the noise can select."""

    def __init__(self, siblings: Siblings, rule: Siblings, tree: Tree, models: Models) -> None:
        self._siblings, self._rule, self._tree, self._models = siblings, rule, tree, models
        self._judged: dict[tuple[Context, tuple[int, ...]], list[float]] = {}

    def law(self) -> Tensor:
        """Return the law of the first D tokens, float64 [V ** D], if the rest is drawn from p.

        D is the longest path plus one.
        """
        drafts, chances, noise = [], [], []
        for draft, chance in self._fillings():
            for share, u in self._events(draft):
                drafts.append(draft)
                chances.append(chance * share)
                noise.append(u)
        p = torch.cat([self._rows(draft) for draft in drafts])
        paths, laws = tree_verification.walk(self._rule, p, p.sum(1), drafts, torch.stack(noise))
        laws = laws / laws.sum(1, keepdim=True) * torch.tensor(chances, dtype=torch.float64)[:, None]
        committed: dict[Context, float] = defaultdict(float)
        for draft, path, law in zip(drafts, paths, laws.tolist(), strict=True):
            for token, chance in enumerate(law):
                committed[(*(draft.tokens[node] for node in path), token)] += chance
        return self._completed(committed)

    def expected(self) -> Tensor:
        law = [self._chance((), sequence) for sequence in contexts(VOCAB, self._deep)]
        return torch.tensor(law, dtype=torch.float64)

    @property
    def _deep(self) -> int:
        return max(self._tree.depths) + 2

    def _fillings(self) -> Iterator[tuple[TreeDraft, float]]:
        """Return each tree of drafts with its probability."""
        states: list[tuple[dict[int, int], float]] = [({}, 1.0)]
        for node in range(ROOT, len(self._tree)):
            family = self._tree.children[node + 1]
            if family:
                states = [
                    (tokens | dict(zip(family, drawn, strict=True)), chance * share)
                    for tokens, chance in states
                    for drawn, share in self._draws(tokens, node, len(family)).items()
                ]
        for tokens, chance in states:
            yield self._draft(tokens), chance

    def _draws(self, tokens: dict[int, int], node: int, width: int) -> Draws:
        return DRAWS[self._siblings](self._models.q(self._context(tokens, node)), width)

    def _context(self, tokens: dict[int, int], node: int) -> Context:
        return () if node == ROOT else (*self._context(tokens, self._tree.parents[node]), tokens[node])

    def _draft(self, tokens: dict[int, int]) -> TreeDraft:
        probs = [
            self._models.q(self._context(tokens, node)) if self._tree.children[node + 1] else None
            for node in range(ROOT, len(self._tree))
        ]
        return TreeDraft(self._tree, tuple(tokens[node] for node in range(len(self._tree))), tuple(probs))

    def _rows(self, draft: TreeDraft) -> Tensor:
        tokens = dict(enumerate(draft.tokens))
        return torch.stack([self._models.p(self._context(tokens, node)) for node in range(ROOT, len(self._tree))])

    def _events(self, draft: TreeDraft, node: int = ROOT) -> Iterator[tuple[float, Tensor]]:
        """Return the probability of each outcome from `node` down, and uniforms [D, K] that produce it."""
        wide = max(len(family) for family in self._tree.children)
        nothing = torch.full((self._deep, wide), math.inf, dtype=torch.float64)
        family = self._tree.children[node + 1]
        if not family:
            yield 1.0, nothing
            return
        context = self._context(dict(enumerate(draft.tokens)), node)
        kept = self._kept(context, tuple(draft.tokens[child] for child in family))
        yield kept[NONE], nothing
        for place, child in enumerate(family):
            if kept[place] == 0.0:
                continue
            for share, below in self._events(draft, child):
                u = torch.cat([nothing[:1].clone(), below[:-1]])
                u[0, place] = 0.0
                yield kept[place] * share, u

    def _kept(self, context: Context, tokens: tuple[int, ...]) -> list[float]:
        """Return the probability that each of these siblings is kept, and last that none is."""
        if (context, tokens) not in self._judged:
            node = Node(rule_of(self._rule), self._models.p(context), self._models.q(context), {tokens: 1.0})
            self._judged[context, tokens] = node.kept()[0].tolist()
        return self._judged[context, tokens]

    def _completed(self, committed: dict[Context, float]) -> Tensor:
        law = []
        for sequence in contexts(VOCAB, self._deep):
            cuts = range(1, self._deep + 1)
            law.append(sum(committed[sequence[:cut]] * self._chance(sequence[:cut], sequence[cut:]) for cut in cuts))
        return torch.tensor(law, dtype=torch.float64)

    def _chance(self, context: Context, rest: Context) -> float:
        chance = 1.0
        for step, token in enumerate(rest):
            chance *= float(self._models.p(context + rest[:step])[token])
        return chance

    def error(self) -> float:
        return float((self.law() - self.expected()).abs().max())
