"""By enumeration: whatever the drafter's model, the joint law of a round's tokens is the target's, to rounding."""

import pytest
import torch
from torch import Tensor

from specdec.draft import SparseProbs
from specdec.params import SamplingParams
from specdec.proposal import compress
from specdec.sampling import History, probabilities
from tests.conformance.enumeration import Block, Claim, Law, Rejection, Rule, Window, outcome
from tests.conformance.tables import Context, TableModel, contexts

SHAPES = [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)]
SEEDS = [1, 2, 3]


class Tables:
    """A target and a drafter of different opinions, with each distribution made once by the real functions."""

    def __init__(self, vocab_size: int, seed: int, support: int, params: SamplingParams | None = None) -> None:
        self._models = TableModel(vocab_size, seed), TableModel(vocab_size, 1000 + seed)
        self._params = params or SamplingParams()
        self._support = support
        self._rows: dict[tuple[int, Context], Tensor] = {}
        self._claims: dict[Context, SparseProbs] = {}

    def _row(self, which: int, context: Context) -> Tensor:
        if (which, context) not in self._rows:
            logits = self._models[which].logits(context)[None]
            self._rows[which, context] = probabilities(logits, [self._params], [History((), context)])[0]
        return self._rows[which, context]

    def p(self, context: Context) -> Tensor:
        return self._row(0, context)

    def raw_q(self, context: Context) -> Tensor:
        return self._row(1, context)

    def sent_q(self, context: Context) -> SparseProbs:
        if context not in self._claims:
            self._claims[context] = compress(self.raw_q(context)[None], self._support)[0]
        return self._claims[context]

    def drawn_q(self, context: Context) -> Tensor:
        sent = self.sent_q(context)
        dense = torch.zeros(len(self.raw_q(context)), dtype=torch.float64)
        dense[sent.ids] = sent.weights.double() / sent.weights.sum()
        return dense

    def joint(self, length: int) -> Tensor:
        vocab_size = len(self.p(()))
        return torch.stack(
            [
                torch.stack([self.p(sequence[:step])[token] for step, token in enumerate(sequence)]).prod()
                for sequence in contexts(vocab_size, length)
            ]
        )

    def error(self, rule: Rule, gamma: int, drawn: Law | None = None, claimed: Claim | None = None) -> float:
        """Largest difference between the law of a round and the target's joint."""
        result = outcome(rule, self.p, drawn or self.drawn_q, claimed or self.sent_q, gamma)
        return float((result.law - self.joint(gamma + 1)).abs().max())


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=["rejection", "block"])
@pytest.mark.parametrize(("vocab_size", "gamma"), SHAPES)
@pytest.mark.parametrize("support", [1, 2, 4], ids="k={}".format)
def test_the_joint_law_of_a_round_is_the_targets(rule: Rule, vocab_size: int, gamma: int, support: int) -> None:
    for seed in SEEDS:
        assert Tables(vocab_size, seed, support).error(rule, gamma) <= 1e-12


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=["rejection", "block"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.4),
        SamplingParams(presence_penalty=0.9, frequency_penalty=0.5, repetition_penalty=1.4),
    ],
    ids=["greedy", "T=0.6", "top-k", "top-p", "min-p", "penalties"],
)
def test_the_joint_law_is_the_targets_under_each_sampling_parameter(rule: Rule, params: SamplingParams) -> None:
    for seed in SEEDS:
        assert Tables(4, seed, 3, params).error(rule, 3) <= 1e-12


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=["rejection", "block"])
def test_a_draft_that_was_not_sampled_is_exact_as_a_point_mass(rule: Rule) -> None:
    for seed in SEEDS:
        tables = Tables(4, seed, 1)

        def lookup(context: Context, tables: Tables = tables) -> SparseProbs:
            token = (sum(context) + 1) % 4
            return SparseProbs(torch.tensor([token]), torch.tensor([7]))

        def certain(context: Context) -> Tensor:
            return torch.nn.functional.one_hot(torch.tensor((sum(context) + 1) % 4), 4).double()

        assert tables.error(rule, 3, certain, lookup) <= 1e-12


def test_block_verification_keeps_at_least_as_many_drafts_as_token_rejection() -> None:
    gains = []
    for seed in range(12):
        tables = Tables(3, seed, 3)
        token, blocked = (
            outcome(rule, tables.p, tables.drawn_q, tables.sent_q, 3).accepted for rule in (Rejection(), Block())
        )
        gains.append(blocked - token)
    assert min(gains) >= -1e-12
    assert max(gains) > 0.01


class FirstFailure(Block):
    """Planted: block verification that stops at the first failure."""

    def tau(self, window: Window, u: Tensor) -> Tensor:
        return (u < self.thresholds(window)).cumprod(1).sum(1)


class NoResidual(Rejection):
    """Planted: after a rejection, redraw from p."""

    def last(self, p: Tensor, scale: Tensor, ids: Tensor, q: Tensor) -> Tensor:
        return p


class UnscaledResidual(Block):
    """Planted: block verification with token rejection's residual."""

    def scale(self, window: Window, tau: Tensor) -> Tensor:
        return torch.ones(len(tau), dtype=torch.float64)


@pytest.mark.parametrize(
    "rule", [FirstFailure(), NoResidual(), UnscaledResidual()], ids=lambda rule: type(rule).__name__
)
def test_a_wrong_rule_is_caught(rule: Rule) -> None:
    assert max(Tables(4, seed, 4).error(rule, 3) for seed in SEEDS) > 1e-3


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=["rejection", "block"])
def test_a_q_that_is_not_the_one_sampled_is_caught(rule: Rule) -> None:
    for seed in SEEDS:
        tables = Tables(4, seed, 2)

        def raw(context: Context, tables: Tables = tables) -> SparseProbs:
            return compress(tables.raw_q(context)[None], 4)[0]

        assert tables.error(rule, 2, drawn=tables.drawn_q, claimed=raw) > 1e-3, "verified against raw q"
        assert tables.error(rule, 2, drawn=tables.raw_q, claimed=tables.sent_q) > 1e-3, "truncated after the draw"
