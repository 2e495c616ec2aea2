"""Drafts go to the sessions most likely to accept them, as long as the whole batch gains."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specdec.planning.allotment import NO_DRAFTS, Allotment, Demand, RoundSeconds, allot, forecast
from specdec.planning.gamma import best_gamma, expected_tokens, speedup

ALPHAS = st.floats(0.02, 0.98)
COSTS = st.builds(
    RoundSeconds,
    base=st.floats(0.5, 2.0),
    token=st.floats(0.0, 0.5),
    wait=st.floats(0.0, 1.0),
    draft=st.floats(0.0, 0.5),
)


def goodput(gammas: tuple[int, ...], demands: list[Demand], others: int, costs: RoundSeconds) -> float:
    """Return tokens per second, by a separate implementation."""
    tokens = others + sum(expected_tokens(d.alpha, gamma) for d, gamma in zip(demands, gammas, strict=True))
    wait = costs.wait + costs.draft * max(gammas) if max(gammas) else 0.0
    return tokens / (costs.base + costs.token * (len(demands) + others + sum(gammas)) + wait)


@given(st.lists(ALPHAS, min_size=1, max_size=3), st.integers(0, 3), COSTS)
@settings(max_examples=60, deadline=None)
def test_no_other_choice_commits_more_tokens_a_second(alphas: list[float], others: int, costs: RoundSeconds) -> None:
    demands = [Demand(alpha, 4) for alpha in alphas]
    assume(len({round(alpha**place, 9) for alpha in alphas for place in range(1, 5)}) == 4 * len(alphas))
    allotment = allot(demands, others, costs, budget=100)
    ours = goodput(tuple(allotment.gamma(demand) for demand in demands), demands, others, costs)
    choices = [each for each in product(range(5), repeat=len(demands)) if any(each)]
    assert ours == pytest.approx(max(goodput(each, demands, others, costs) for each in choices))


def test_equal_sessions_draft_alike_and_are_judged_so() -> None:
    demands, costs = [Demand(0.5, 4)] * 2, RoundSeconds(base=1.0, token=0.5, wait=0.0, draft=0.0)
    gammas = {allot(demands, 1, costs, budget=100).gamma(demand) for demand in demands}
    assert gammas == {1}
    assert goodput((1, 1), demands, 1, costs) == max(goodput((each, each), demands, 1, costs) for each in range(1, 5))


@given(ALPHAS, st.floats(0.0, 0.5), st.floats(0.0, 1.0), st.floats(0.01, 0.5))
def test_one_session_gets_the_best_gamma_of_the_formula(alpha: float, c: float, r: float, beta: float) -> None:
    costs = RoundSeconds(base=1.0 - beta, token=beta, wait=r, draft=c)
    best = best_gamma(alpha, c, r, beta, limit=16)
    allotment = allot([Demand(alpha, 16)], 0, costs, budget=100)
    if best:
        assert allotment.gamma(Demand(alpha, 16)) == best
        speed = forecast([best], [Demand(alpha, 16)], 0, costs).speedup
        assert speed == pytest.approx(speedup(alpha, best, c, r, beta))


def test_a_tight_budget_goes_where_survival_is_highest() -> None:
    demands = [Demand(0.9, 8), Demand(0.2, 8)]
    allotment = allot(demands, 0, RoundSeconds(1.0, 0.001, 0.0, 0.001), budget=5)
    assert [allotment.gamma(demand) for demand in demands] == [5, 0]


def test_what_does_not_pay_is_forecast_so_and_is_the_best_of_drafting() -> None:
    demands = [Demand(0.1, 8)] * 4
    costs = RoundSeconds(1.0, 0.1, 1.0, 0.5)
    allotment = allot(demands, 0, costs, budget=100)
    assert allotment.gamma(demands[0]) == 1
    assert forecast([1] * 4, demands, 0, costs).speedup < 1.0


def test_a_round_that_waits_for_as_long_as_it_may_breaks_even() -> None:
    demands, costs = [Demand(0.8, 8)] * 2, RoundSeconds(1.0, 0.05, 0.1, 0.05)
    allotment = allot(demands, 1, costs, budget=100)
    gammas = [allotment.gamma(demand) for demand in demands]
    patience = forecast(gammas, demands, 1, costs).patience
    late = RoundSeconds(costs.base, costs.token, patience, 0.0)
    assert forecast(gammas, demands, 1, late).speedup == pytest.approx(1.0)


def test_sessions_that_cannot_draft_get_nothing() -> None:
    costs = RoundSeconds(1.0, 0.1, 0.1, 0.1)
    assert allot([], 3, costs, budget=10) == NO_DRAFTS
    assert allot([Demand(0.9, 0)], 0, costs, budget=10) == NO_DRAFTS
    assert allot([Demand(0.9, 4)], 0, costs, budget=0) == NO_DRAFTS
    assert forecast([0], [Demand(0.9, 4)], 0, costs).speedup == 1.0


@pytest.mark.parametrize(("alpha", "limit", "gamma"), [(1.0, 9, 4), (1.0, 2, 2), (0.5, 9, 2), (0.2, 9, 0), (0.0, 9, 0)])
def test_a_session_drafts_while_its_survival_is_over_the_threshold(alpha: float, limit: int, gamma: int) -> None:
    assert Allotment(0.25, 4).gamma(Demand(alpha, limit)) == gamma
