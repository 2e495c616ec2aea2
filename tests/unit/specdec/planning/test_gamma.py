"""The value of a round, and the controllers that use it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.planning.gamma import AcceptanceEstimate, FixedGamma, OptimalGamma, best_gamma, expected_tokens, speedup

ALPHAS = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("alpha", "gamma", "tokens"), [(0.0, 5, 1.0), (1.0, 5, 6.0), (0.5, 2, 1.75), (0.8, 0, 1.0), (0.8, 5, 3.68928)]
)
def test_expected_tokens_is_the_geometric_sum(alpha: float, gamma: int, tokens: float) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx(tokens)


@given(st.floats(0.0, 0.999), st.integers(0, 16))
def test_expected_tokens_is_the_sum_of_survival(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)))


@pytest.mark.parametrize(("r", "best"), [(0.0, 3.48), (0.1, 3.27), (0.3, 2.92), (0.6, 2.53), (1.0, 2.15), (2.0, 1.58)])
def test_the_best_speedup_against_round_trip(r: float, best: float) -> None:
    """α = 0.85, c = 0.04, β = 0.02, each at its own best γ."""
    gamma = best_gamma(0.85, c=0.04, r=r, beta=0.02, limit=40)
    assert speedup(0.85, gamma, c=0.04, r=r, beta=0.02) == pytest.approx(best, abs=0.006)


@pytest.mark.parametrize(
    ("alpha", "c", "break_even"),
    [
        *[(0.6, 0.03, 1.25), (0.7, 0.03, 1.97), (0.8, 0.03, 3.4), (0.9, 0.03, 7.7)],
        *[(0.6, 0.1, 0.91), (0.7, 0.1, 1.46), (0.8, 0.1, 2.57), (0.9, 0.1, 5.9)],
    ],
)
def test_speculation_pays_up_to_the_break_even_round_trip(alpha: float, c: float, break_even: float) -> None:
    assert best_gamma(alpha, c, r=break_even * 0.97, limit=60) > 0
    assert best_gamma(alpha, c, r=break_even * 1.03, limit=60) == 0


def test_gamma_zero_asks_nobody_and_costs_nothing() -> None:
    assert speedup(0.9, 0, c=0.1, r=5.0, beta=1.0) == 1.0


@given(ALPHAS, st.floats(0, 1), st.floats(0, 3), st.floats(0, 1), st.integers(0, 16))
def test_best_gamma_is_never_worse_than_any_other(alpha: float, c: float, r: float, beta: float, limit: int) -> None:
    best = speedup(alpha, best_gamma(alpha, c, r, beta, limit), c, r, beta)
    assert best >= 1.0
    assert all(best >= speedup(alpha, gamma, c, r, beta) for gamma in range(limit + 1))


def test_of_equal_gammas_the_least_wins() -> None:
    assert best_gamma(0.0, c=0.0) == 0


def test_the_estimate_counts_judged_tokens_only() -> None:
    """One of five accepted: two tokens were judged, so 1/2 and not 1/5."""
    estimate = AcceptanceEstimate(weight=0.0).observed(drafted=5, accepted=1)
    assert estimate.alpha == 0.5


def test_the_estimate_counts_the_known_chances_of_judged_tokens() -> None:
    """Two tokens were judged, and were accepted with 0.9 and 0.3."""
    estimate = AcceptanceEstimate(weight=0.0).observed(drafted=5, accepted=1, overlap=0.9 + 0.3)
    assert estimate.alpha == pytest.approx(0.6)
    assert AcceptanceEstimate(weight=0.0).observed(drafted=2, accepted=2, overlap=1.2).alpha == pytest.approx(0.6)


def test_the_estimate_starts_at_its_prior_and_learns() -> None:
    estimate = AcceptanceEstimate(prior=0.7)
    assert estimate.alpha == pytest.approx(0.7)
    for _ in range(200):
        estimate = estimate.observed(drafted=4, accepted=0)
    assert estimate.alpha < 0.1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda pair: (max(pair), min(pair))), max_size=60))
def test_the_estimate_stays_a_probability(rounds: list[tuple[int, int]]) -> None:
    estimate = AcceptanceEstimate()
    for drafted, accepted in rounds:
        estimate = estimate.observed(drafted, accepted)
        assert 0.0 <= estimate.alpha <= 1.0


def test_rounds_without_drafts_lead_back_to_the_prior() -> None:
    estimate = AcceptanceEstimate(prior=0.7)
    for _ in range(100):
        estimate = estimate.observed(drafted=4, accepted=0)
    for _ in range(600):
        estimate = estimate.observed(drafted=0, accepted=0)
    assert estimate.alpha == pytest.approx(0.7, abs=0.01)


def test_fixed_gamma_learns_nothing() -> None:
    controller = FixedGamma(4)
    controller.observe(drafted=4, accepted=0)
    assert controller.gamma() == 4


def test_optimal_gamma_starts_at_the_best_for_the_prior() -> None:
    controller = OptimalGamma(lambda: 0.05, lambda: 0.02, limit=16, estimate=AcceptanceEstimate(prior=0.8))
    assert controller.gamma() == best_gamma(0.8, 0.05, beta=0.02, limit=16)


def test_optimal_gamma_grows_with_good_drafts_and_stops_with_bad_ones() -> None:
    controller = OptimalGamma(lambda: 0.1, lambda: 0.05, limit=12)
    start = controller.gamma()
    for _ in range(100):
        controller.observe(drafted=4, accepted=4)
    assert controller.gamma() > start
    for _ in range(200):
        controller.observe(drafted=4, accepted=0)
    assert controller.gamma() == 0


def test_optimal_gamma_tries_again_after_it_has_stopped() -> None:
    controller = OptimalGamma(lambda: 0.1, lambda: 0.05, limit=12)
    for _ in range(200):
        controller.observe(drafted=4, accepted=0)
    assert controller.gamma() == 0
    for _ in range(300):
        controller.observe(drafted=0, accepted=0)
    assert controller.gamma() > 0


def test_optimal_gamma_reads_its_costs_live() -> None:
    costs = {"c": 0.05}
    controller = OptimalGamma(c=lambda: costs["c"], beta=lambda: 0.0, limit=12)
    assert controller.gamma() > 0
    costs["c"] = 50.0
    assert controller.gamma() == 0


def test_optimal_gamma_does_not_move_for_a_gain_that_is_noise() -> None:
    controller = OptimalGamma(lambda: 0.05, lambda: 0.02, limit=16, estimate=AcceptanceEstimate(prior=0.8, weight=2000))
    before = controller.gamma()
    for _ in range(10):
        controller.observe(drafted=5, accepted=5)
    alpha = controller.estimate.alpha
    assert best_gamma(alpha, 0.05, beta=0.02, limit=16) >= before
    assert controller.gamma() == before
