"""By enumeration: with several drafts for one position, the committed token has the target's law, up to rounding."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.rules.multidraft import Choice, with_replacement, without_replacement
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.conformance.exact_siblings import Draws, Node, Rule, drawn_with_replacement, drawn_without_replacement
from tests.conformance.table_models import TableModel
from tests.support.draft_laws import compress

SEEDS = [1, 2, 3, 4]


@dataclass(frozen=True)
class Form:
    """A rule and the form of draws it applies to."""

    rule: Rule
    draws: Callable[[SparseProbs, int], Draws]

    def node(self, p: Tensor, q: SparseProbs, width: int) -> Node:
        return Node(self.rule, p, q, self.draws(q, width))


FORMS = {
    "with": Form(with_replacement, drawn_with_replacement),
    "without": Form(without_replacement, drawn_without_replacement),
}


def pair(
    seed: int, support: int, vocab_size: int = 5, params: SamplingParams | None = None
) -> tuple[Tensor, SparseProbs]:
    """Return p and q̂ that differ strongly."""
    p, q = (
        probabilities(TableModel(vocab_size, each).logits(())[None], [params or SamplingParams()], [History()])
        for each in (seed, 1000 + seed)
    )
    return p[0], compress(q, support)[0]


def error(node: Node, p: Tensor) -> float:
    return float((node.law() - p).abs().max())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("support", [1, 2, 3, 5], ids="k={}".format)
def test_the_committed_token_has_the_targets_law(form: Form, width: int, support: int) -> None:
    for seed in SEEDS:
        p, q = pair(seed, support)
        assert error(form.node(p, q, width), p) <= 1e-12


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=0.0), SamplingParams(top_k=2), SamplingParams(top_p=0.6)],
    ids=["T=0", "top-k", "top-p"],
)
def test_the_law_is_the_targets_where_it_has_holes(form: Form, params: SamplingParams) -> None:
    for seed in SEEDS:
        (p, _), (_, q) = pair(seed, 3, params=params), pair(seed, 3)
        assert error(form.node(p, q, 3), p) <= 1e-12


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_p_equal_to_q_keeps_the_first_sibling(form: Form) -> None:
    q = SparseProbs(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 5]))
    p = torch.tensor([1, 0, 2, 5, 0], dtype=torch.float64) / 8
    node = form.node(p, q, 2)
    assert error(node, p) <= 1e-12
    assert float((node.chances * node.kept()[:, 0]).sum()) == pytest.approx(1)


def test_more_siblings_are_kept_more_often_and_most_without_replacement() -> None:
    gains = []
    for seed in SEEDS:
        p, q = pair(seed, 5)
        one, two, three = (Node(with_replacement, p, q, drawn_with_replacement(q, k)).accepted() for k in (1, 2, 3))
        distinct = Node(without_replacement, p, q, drawn_without_replacement(q, 3)).accepted()
        assert one <= two <= three
        gains.append(distinct - three)
    assert max(gains) > 0.01


def test_drawing_without_replacement_and_the_other_rule_is_caught() -> None:
    for seed in SEEDS:
        p, q = pair(seed, 5)
        assert error(Node(with_replacement, p, q, drawn_without_replacement(q, 2)), p) > 1e-3


def test_drawn_with_replacement_and_verified_with_the_other_rule_is_caught() -> None:
    for seed in SEEDS:
        p, q = pair(seed, 5)
        assert error(Node(without_replacement, p, q, drawn_with_replacement(q, 2)), p) > 1e-3


def test_a_recursion_that_forgets_the_rejections_before_is_caught() -> None:
    """Plant a bug that judges every sibling against p itself."""

    def forgetful(p: Tensor, ids: Tensor, q: Tensor, children: Tensor, u: Tensor) -> Choice:
        choice = with_replacement(p, ids, q, children, u)
        alone = [with_replacement(p, ids, q, children[:, [k]], u[:, [k]]).child for k in range(children.shape[1])]
        for place in reversed(range(len(alone))):
            choice.child[alone[place] == 0] = place
        return choice

    for seed in SEEDS:
        p, q = pair(seed, 5)
        assert error(Node(forgetful, p, q, drawn_with_replacement(q, 2)), p) > 1e-3


def test_likeliest_children_verified_as_samples_are_caught() -> None:
    """Deterministic children are not samples, so they need the agreement rule."""
    for seed in SEEDS:
        p, q = pair(seed, 5)
        best = tuple(q.ids[q.weights.argsort(descending=True)[:2]].tolist())
        assert error(Node(without_replacement, p, q, {best: 1.0}), p) > 1e-3
