"""By enumeration: for any drafter's model, the joint law of a round's tokens is the target's, up to rounding."""

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from specdec.rules.draft import SparseProbs, point_mass, uniform_probs
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.automata import BUDGET, HASH, LOOP
from tests.conformance.exact_chain import Drafter, Drawn, Outcome, outcome, proposed, sample_law
from tests.conformance.table_models import Context, Tables, pair

RATIO = [Mode.REJECTION, Mode.BLOCK]
SHAPES = [(3, 1, 3), (3, 2, 1), (3, 3, 2), (3, 4, 3), (4, 2, 4), (4, 3, 2), (5, 2, 4), (6, 2, 3), (8, 1, 8), (8, 4, 2)]
"""Vocabulary, γ, support of q̂."""
PARAMS = {
    "T=0": SamplingParams(temperature=0.0),
    "T=0.6": SamplingParams(temperature=0.6),
    "top-k": SamplingParams(top_k=2),
    "top-p": SamplingParams(top_p=0.7),
    "min-p": SamplingParams(min_p=0.4),
    "bias": SamplingParams(temperature=0.8, top_p=0.8, logit_bias={0: 2.0, 2: -1.0}),
    "allowed and banned": SamplingParams(allowed_token_ids=(0, 1, 3), banned_token_ids=(1,)),
    "penalties": SamplingParams(presence_penalty=0.9, frequency_penalty=0.5, repetition_penalty=1.4),
    "bad words": SamplingParams(bad_words=((0, 1), (2, 2), (1, 0, 3), (3,))),
    "grammar": SamplingParams(grammar=LOOP),
    "budget": SamplingParams(grammar=BUDGET, top_p=0.9),
    "grammar and more": SamplingParams(grammar=LOOP, top_p=0.9, presence_penalty=0.9, logit_bias={HASH: 2.0}),
}


def error(tables: Tables, mode: Mode, gamma: int, support: int) -> float:
    """Return the largest difference between the law of a round and the target's joint law."""
    found = outcome(tables, mode, proposed(tables, mode, support), gamma)
    return float((found.law - tables.joint(gamma + 1)).abs().max())


@pytest.mark.parametrize("mode", RATIO)
@pytest.mark.parametrize(("vocab_size", "gamma", "support"), SHAPES)
def test_the_joint_law_of_a_round_is_the_targets(mode: Mode, vocab_size: int, gamma: int, support: int) -> None:
    assert error(pair(vocab_size, seed=1), mode, gamma, support) <= 1e-12


@pytest.mark.parametrize("mode", RATIO)
@pytest.mark.parametrize("seed", range(2, 8))
def test_the_joint_law_is_the_targets_for_other_models(mode: Mode, seed: int) -> None:
    assert error(pair(4, seed), mode, 2, 3) <= 1e-12


@pytest.mark.parametrize("mode", RATIO)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_joint_law_is_the_targets_under_each_sampling_parameter(mode: Mode, params: SamplingParams) -> None:
    assert error(pair(4, 1, params), mode, 3, 3) <= 1e-12


@pytest.mark.parametrize("mode", RATIO)
def test_a_draft_that_was_not_sampled_is_exact_as_a_point_mass(mode: Mode) -> None:
    def lookup(contexts: Sequence[Context]) -> list[list[Drawn]]:
        tokens = [(sum(context) + 1) % 4 for context in contexts]
        return [[Drawn(token, 1.0, SparseProbs(torch.tensor([token]), torch.tensor([7])))] for token in tokens]

    for seed in range(3):
        tables = pair(4, seed)
        found = outcome(tables, mode, lookup, 3)
        assert float((found.law - tables.joint(4)).abs().max()) <= 1e-12


@pytest.mark.parametrize("mode", RATIO)
def test_a_drafter_without_the_grammar_leaves_the_law_and_loses_speed(mode: Mode) -> None:
    masked = pair(4, 1, SamplingParams(grammar=LOOP))
    free = pair(4, 1)
    own, other = (outcome(masked, mode, proposed(tables, mode, 4), 3) for tables in (masked, free))
    assert float((other.law - masked.joint(4)).abs().max()) <= 1e-12
    assert other.accepted < own.accepted


def test_block_verification_keeps_at_least_as_many_drafts_as_rejection() -> None:
    gains = []
    for seed in range(8):
        tables = pair(3, seed)
        token, blocked = (outcome(tables, mode, proposed(tables, mode, 3), 3).accepted for mode in RATIO)
        gains.append(blocked - token)
    assert min(gains) >= -1e-12
    assert max(gains) > 0.01


def test_a_sampled_token_has_the_law_it_is_sampled_from() -> None:
    p = pair(8, 1).p([(token,) for token in range(8)])
    p[:, 3] = 0.0
    assert float((sample_law(5 * p) - p / p.sum(1, keepdim=True)).abs().max()) <= 1e-12


def chance(vocab_size: int, sent: SparseProbs) -> Drafter:
    """Return a drafter of uniform random tokens that sends `sent`."""
    drawn = [Drawn(token, 1.0 / vocab_size, sent) for token in range(vocab_size)]
    return lambda contexts: [drawn for _ in contexts]


@pytest.mark.parametrize("mode", RATIO)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=2)])
def test_random_tokens_are_exact_and_improve_every_model(mode: Mode, params: SamplingParams) -> None:
    """Leviathan et al., §3.6: drafts that are uniform over the whole vocabulary bring something, whatever the target.

    α = Σ min(p, 1/V) is at least 1/V: the likeliest token has that probability.
    """
    for vocab_size, gamma in ((3, 3), (4, 2), (8, 1)):
        for seed in range(4):
            tables = pair(vocab_size, seed, params)
            found = outcome(tables, mode, chance(vocab_size, uniform_probs(vocab_size)), gamma)
            assert float((found.law - tables.joint(gamma + 1)).abs().max()) <= 1e-12
            overlap = tables.p([()]).clamp_max(1 / vocab_size).sum()
            assert found.accepted >= float(overlap) - 1e-12 >= 1 / vocab_size - 2e-12


@pytest.mark.parametrize("mode", RATIO)
def test_random_tokens_judged_by_another_distribution_are_caught(mode: Mode) -> None:
    """The planted bug is a verifier that takes the flag for other weights than those drawn from."""
    planted = SparseProbs(torch.arange(4), torch.tensor([2, 1, 1, 1]))
    tables = pair(4, seed=1)
    found = outcome(tables, mode, chance(4, planted), 2)
    assert float((found.law - tables.joint(3)).abs().max()) > 1e-3


@pytest.mark.parametrize("mode", RATIO)
def test_drafts_drawn_from_counts_are_exact_by_these_counts(mode: Mode) -> None:
    """A drawn draft is exact as a point mass, too. The planted bug is the opposite: a guess sent with counts."""
    law = SparseProbs(torch.tensor([0, 1, 3]), torch.tensor([5, 2, 1]))
    counts, tables = {0: 5 / 8, 1: 2 / 8, 3: 1 / 8}, pair(4, seed=2)

    def outcome_of(chances: Mapping[int, float], sent: Callable[[int], SparseProbs]) -> Outcome:
        drawn = [Drawn(token, chance, sent(token)) for token, chance in chances.items()]
        return outcome(tables, mode, lambda contexts: [drawn for _ in contexts], 2)

    def error_of(found: Outcome) -> float:
        return float((found.law - tables.joint(3)).abs().max())

    drawn, guessed = outcome_of(counts, lambda _: law), outcome_of(counts, point_mass)
    assert max(error_of(drawn), error_of(guessed)) <= 1e-12
    assert drawn.accepted > guessed.accepted
    assert error_of(outcome_of({0: 1.0}, lambda _: law)) > 1e-3
